"""Adds Hydrant's config folders to the search path of any Hydra app. Hydra searches hydra_plugins for such plugins."""

from hydrant.config.compose import HydrantSearchPath as HydrantSearchPath
from hydrant.config.file_source import LimitedFileSource as LimitedFileSource
