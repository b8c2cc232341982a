"""The pictures that runs have drawn, for the page: in it, or by an address of `hydrant watch`."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydrant.commands.compare.run import Run
from hydrant.runs.folder import PICTURES

MAX_BYTES = 384 << 10
"""The pictures in a page have at most this many bytes together, so that a page can be sent by mail."""

PICTURE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


def pictures_of(folder: Path | None) -> dict[str, Path]:
    """Return the pictures of a run by `<name>/<file>`, the latest last. Links are left out: they may lead elsewhere."""
    if folder is None:
        return {}
    found = dict[str, Path]()
    for kind in _entries(folder / PICTURES):
        if kind.is_dir(follow_symlinks=False):
            for entry in _entries(Path(kind.path)):
                if entry.is_file(follow_symlinks=False) and Path(entry.name).suffix in PICTURE_TYPES:
                    found[f"{kind.name}/{entry.name}"] = Path(entry.path)
    return found


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError):
        if stat.S_ISDIR(folder.lstat().st_mode):
            with os.scandir(folder) as entries:
                yield from sorted(entries, key=lambda entry: entry.name)


def embedded_pictures(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the latest picture of each name, as data in the page, until `MAX_BYTES`; and how many are left out."""
    room, left_out = MAX_BYTES, 0

    def source(run: Run, file: str, path: Path) -> str | None:
        nonlocal room, left_out
        size = path.stat().st_size
        if size > room:
            left_out += 1
            return None
        room -= size
        return f"data:{PICTURE_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"

    found = listed_pictures(runs, source, only_latest=True)
    return {"runs": found, "left_out": left_out}


def listed_pictures(
    runs: Sequence[Run], source: Callable[[Run, str, Path], str | None], *, only_latest: bool = False
) -> list[list[dict[str, Any]]]:
    """Return the pictures of each run: `name`, the update `after` which it was drawn (None: unknown), and `source`."""
    shown: list[list[dict[str, Any]]] = []
    for run in runs:
        pictures = pictures_of(run.folder)
        if only_latest:
            latest = {file.rpartition("/")[0]: file for file in pictures}
            pictures = {file: pictures[file] for file in latest.values()}
        entries = list[dict[str, Any]]()
        for file, path in pictures.items():
            name, _, rest = file.rpartition("/")
            number = re.search(r"\d+", rest)
            with suppress(OSError):  # it was just removed
                if (address := source(run, file, path)) is not None:
                    after = number and int(number[0])
                    entries.append({"name": name, "after": after, "file": rest, "source": address})
        shown.append(entries)
    return shown
