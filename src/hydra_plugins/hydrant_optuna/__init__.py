"""Registers the Optuna sweeper with Hydra, which searches the packages in hydra_plugins for it."""

from hydrant.sweeps.optuna import sweeper


# Hydra registers only classes that are defined in this package.
class OptunaSweeper(sweeper.OptunaSweeper):
    __doc__ = sweeper.OptunaSweeper.__doc__
