"""Hydra's search path: the user's conf folder first, then that of the primary config, then Hydrant's."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from hydrant.config.compose import register_resolvers
from hydrant.config.groups import conf_dir, user_conf_dir


class HydrantSearchPath(SearchPathPlugin):
    """Add the user's conf folder at the front and Hydrant's at the end. Hydra calls this plugin."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        register_resolvers()
        user = user_conf_dir()
        if user is not None:
            _add(search_path, user, first=True)
        _add(search_path, conf_dir(), first=False)


def _add(search_path: ConfigSearchPath, folder: Path, *, first: bool) -> None:
    present = {
        Path(str(element.path).removeprefix("file://")).resolve() for element in search_path.get_path()
    }
    if folder.resolve() in present:
        return
    add = search_path.prepend if first else search_path.append
    add(provider="hydrant", path=f"file://{folder}")
