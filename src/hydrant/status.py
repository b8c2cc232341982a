"""`status`: how far the runs of a sweep are, from another terminal or after all has ended. Brings in no torch."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hydrant.config.arguments import Flags
from hydrant.errors import ConfigError, suggestion
from hydrant.job import relative, say
from hydrant.live import drawn, is_terminal, table
from hydrant.standing import Standing, standings

_WATCH_SECONDS = 1


def main(arguments: Sequence[str]) -> int:
    """Show the state of sweeps or runs; the exit status."""
    parser = Flags("status")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--json", action="store_true")
    options, words = parser.split(arguments)
    folders = [_folder(word) for word in words]
    if not folders:
        raise ConfigError("FOLDER", "give a sweep or a run: hydrant status multirun/lr_study")
    if options.watch and (options.json or not is_terminal()):
        raise ConfigError("--watch", "draws in a terminal; leave it out, or ask again with --json")
    if options.watch:
        _watch(folders)
    found = {relative(folder): standings(folder) for folder in folders}
    if options.json:
        told = {folder: [dataclasses.asdict(own) for own in runs] for folder, runs in found.items()}
        say(json.dumps(told))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        say("\n\n".join("\n".join(table(folder, runs, width)) for folder, runs in found.items()))
    return 0


def _folder(word: str) -> Path:
    """The folder of a sweep or of a run that a word names.

    Raises:
        ConfigError: it is none.
    """
    folder = Path(word).resolve()
    if not folder.is_dir():
        parent = folder.parent
        names = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
        beside = suggestion(folder.name, names, f"Folders in {relative(parent)}") if names else ""
        raise ConfigError("FOLDER", f"{word!r} is no folder{beside}")
    if not standings(folder):
        raise ConfigError("FOLDER", f"no runs in {word}; give the folder of a sweep or of a run")
    return folder


def _watch(folders: Sequence[Path]) -> None:
    """Draw it until nothing is queued or running."""

    def lines(width: int, height: int) -> list[str]:
        room = height // len(folders)
        return [line for f in folders for line in table(relative(f), standings(f), width, room)]

    with drawn(lines):
        while any(_goes_on(run) for folder in folders for run in standings(folder)):
            time.sleep(_WATCH_SECONDS)


def _goes_on(run: Standing) -> bool:
    return run.state == "queued" or run.is_running
