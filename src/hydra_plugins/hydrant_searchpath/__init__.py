"""Registers Hydrant's config folders with Hydra, which searches the packages in hydra_plugins for them."""

from hydrant.config import search_path


# Hydra registers only classes that are defined in this package.
class HydrantSearchPath(search_path.HydrantSearchPath):
    __doc__ = search_path.HydrantSearchPath.__doc__
