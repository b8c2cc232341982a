"""Optimizers beyond `torch.optim`: a function or class called with the parameter groups."""

from hydrant.optimizers.muon import MuonWithAdamW
from hydrant.optimizers.timm import timm_optimizer

__all__ = ["MuonWithAdamW", "timm_optimizer"]
