"""Adds Hydrant's config folders to the search path of any Hydra app. Hydra searches hydra_plugins for such plugins."""

from hydrant.config.file_source import LimitedFileSource as LimitedFileSource
from hydrant.config.search_path import HydrantSearchPath as HydrantSearchPath
