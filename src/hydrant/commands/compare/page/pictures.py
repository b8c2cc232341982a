"""The pictures that runs have drawn, as data in the page."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Iterator, Sequence
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
    """Return the latest picture of each name of each run, until `MAX_BYTES`; and how many are left out.

    A picture has `name`, the update `after` which it was drawn (None: unknown), `file` and `source`.
    """
    room, left_out, shown = MAX_BYTES, 0, list[list[dict[str, Any]]]()
    for run in runs:
        shown.append([])
        pictures = pictures_of(run.folder)
        latest = {file.rpartition("/")[0]: file for file in pictures}
        for name, file in latest.items():
            number = re.search(r"\d+", rest := file.rpartition("/")[2])
            with suppress(OSError):  # it was just removed
                size = pictures[file].stat().st_size
                if size > room:
                    left_out += 1
                    continue
                content = base64.b64encode(pictures[file].read_bytes()).decode()
                source = f"data:{PICTURE_TYPES[pictures[file].suffix]};base64,{content}"
                after = int(number[0]) if number else None
                shown[-1].append({"name": name, "after": after, "file": rest, "source": source})
                room -= size
    return {"runs": shown, "left_out": left_out}
