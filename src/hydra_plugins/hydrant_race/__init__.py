"""Registers the sweeper of races with Hydra, which searches the packages in hydra_plugins for it."""

from hydrant.sweeps.race import sweeper


# Hydra registers only classes that are defined in this package.
class RaceSweeper(sweeper.RaceSweeper):
    __doc__ = sweeper.RaceSweeper.__doc__
