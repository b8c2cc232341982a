"""Registers the grid sweeper, the default of `--multirun`, with Hydra, which searches hydra_plugins for it."""

from hydra.core.config_store import ConfigStore

from hydrant.sweeps import grid


# Hydra registers only classes that are defined in this package.
class GridSweeper(grid.GridSweeper):
    __doc__ = grid.GridSweeper.__doc__


ConfigStore.instance().store(group="hydra/sweeper", name="grid", node=grid.GridConfig, provider="hydrant")
