"""Optimizers beyond `torch.optim`: a function or class called with the parameter groups."""

from hydrant.optimizers.ema import Ema as Ema
from hydrant.optimizers.ema import NoAveraging as NoAveraging
from hydrant.optimizers.ema import TailAverage as TailAverage
from hydrant.optimizers.matrices import MuonWithAdamW as MuonWithAdamW
from hydrant.optimizers.matrices import NorMuonWithAdamW as NorMuonWithAdamW
from hydrant.optimizers.wrappers import Sam as Sam
from hydrant.optimizers.wrappers import timm_optimizer as timm_optimizer
