"""Hydra's search path: the user's conf folder first, then that of the primary config, then Hydrant's."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from hydrant.config import file_source
from hydrant.config.compose import register_resolvers
from hydrant.config.groups import conf_dir, user_conf_dir


class HydrantSearchPath(SearchPathPlugin):
    """Add the user's conf folder at the front and Hydrant's at the end. Hydra calls this plugin."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        register_resolvers()
        file_source.register()
        paths = [str(element.path).removeprefix("file://") for element in search_path.get_path()]
        present = {Path(path).resolve() for path in paths}
        for folder, add in ((user_conf_dir(), search_path.prepend), (conf_dir(), search_path.append)):
            if folder is not None and folder.resolve() not in present:
                add(provider="hydrant", path=f"file://{folder}")
