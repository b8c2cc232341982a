"""Found by Hydra: `./conf` comes before Hydrant's own groups, and these behind anybody's primary config."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from hydrant.config.compose import register
from hydrant.options import conf_dir, user_conf_dir


class HydrantSearchPath(SearchPathPlugin):
    """Adds the user's conf folder in front and Hydrant's behind."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        register()
        user = user_conf_dir()
        if user is not None:
            _add(search_path, user, first=True)
        _add(search_path, conf_dir(), first=False)


def _add(search_path: ConfigSearchPath, folder: Path, *, first: bool) -> None:
    known = {Path(str(element.path).removeprefix("file://")).resolve() for element in search_path.get_path()}
    if folder.resolve() in known:
        return
    add = search_path.prepend if first else search_path.append
    add(provider="hydrant", path=f"file://{folder}")
