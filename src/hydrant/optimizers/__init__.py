"""Optimizers beyond `torch.optim`: a function or class called with the parameter groups."""

from hydrant.optimizers.ema import Ema, NoAveraging, TailAverage
from hydrant.optimizers.library import library_optimizer
from hydrant.optimizers.muon import MuonWithAdamW
from hydrant.optimizers.normuon import NorMuonWithAdamW
from hydrant.optimizers.sam import Sam
from hydrant.optimizers.timm import timm_optimizer

__all__ = [
    "Ema",
    "MuonWithAdamW",
    "NoAveraging",
    "NorMuonWithAdamW",
    "Sam",
    "TailAverage",
    "library_optimizer",
    "timm_optimizer",
]
