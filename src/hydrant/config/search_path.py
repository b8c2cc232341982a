"""Hydra's search path: the user's conf folder first, then that of the primary config, then Hydrant's."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from hydrant.config.groups import conf_dir, user_conf_dir
from hydrant.config.option_lists import SCHEME, with_limits
from hydrant.config.resolvers import register_resolvers

config_dir: ContextVar[Path | None] = ContextVar("config_dir", default=None)
"""The folder of `--config-dir`, which comes last."""


class HydrantSearchPath(SearchPathPlugin):
    """Add the user's conf folder at the front and Hydrant's at the end. Hydra calls this plugin."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        register_resolvers()
        for element in search_path.get_path():
            element.path = with_limits(element.path)
        paths = [element.path.removeprefix(f"{SCHEME}://") for element in search_path.get_path()]
        present = {Path(path).resolve() for path in paths}
        for folder, add in ((user_conf_dir(), search_path.prepend), (conf_dir(), search_path.append)):
            if folder is not None and folder.resolve() not in present:
                add(provider="hydrant", path=f"{SCHEME}://{folder}")
        if (folder := config_dir.get()) is not None:
            search_path.append(provider="command-line", path=f"{SCHEME}://{folder}")
