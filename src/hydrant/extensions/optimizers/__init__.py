"""Optimizers besides torch's own: those of timm, Muon and its kin for matrices, and sharpness-aware minimisation."""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.optimizers.matrices import MuonWithAdamW as MuonWithAdamW
    from hydrant.extensions.optimizers.matrices import NorMuonWithAdamW as NorMuonWithAdamW
    from hydrant.extensions.optimizers.wrappers import Sam as Sam
    from hydrant.extensions.optimizers.wrappers import timm_optimizer as timm_optimizer

__getattr__, __dir__ = lazy_exports(__name__)
