"""The files of a user in a folder, for every command that reads folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hydrant.errors import log


def visible_files(folder: Path, is_meant: Callable[[str], bool], *, once: bool = True) -> Iterator[str]:
    """Yield the paths of the files in a folder and below that are meant, also where links lead, but no hidden ones.

    A file is hidden if its name, or that of a folder below `folder`, begins with a dot, as in `.git`. The log says how
    many of those that are meant are left out.

    Args:
        is_meant: whether a path is one of a file to read.
        once: whether a folder that links lead to again is left out.
    """
    seen, hidden = set[str](), list[str]()
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if once and real in seen:
            folders.clear()
            continue
        seen.add(real)
        for path in filter(is_meant, (f"{root}{os.sep}{name}" for name in names)):
            if f"{os.sep}." in path[len(str(folder)) :]:
                hidden.append(path)
            else:
                yield path
    if hidden:
        count = f"{len(hidden):,} hidden file{'s' * (len(hidden) > 1)}"
        log.warning("%s: left out %s, such as %s; rename what is meant", folder, count, min(hidden))
