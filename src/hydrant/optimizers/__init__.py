"""Optimizers beyond `torch.optim`: a function or class called with the parameter groups."""

from hydrant.optimizers.ema import Ema, NoAveraging, TailAverage
from hydrant.optimizers.library import Sam, library_optimizer, timm_optimizer
from hydrant.optimizers.matrices import MuonWithAdamW, NorMuonWithAdamW

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
