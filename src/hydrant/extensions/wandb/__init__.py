"""Weights & Biases: its tracker, and `hydrant sync`."""

from typing import TYPE_CHECKING

from hydrant.commands.registry import Command
from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.wandb.tracker import WandbTracker as WandbTracker

__getattr__, __dir__ = lazy_exports(__name__)

COMMAND = Command("sync", "send the offline data of runs to W&B, once", main=f"{__name__}.sync:main",
                  writes=True, runs_own_code=False)  # fmt: skip
