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
from hydrant.job import emit, relative, say
from hydrant.live import drawn, is_terminal, table
from hydrant.standing import Standing, standings

_WATCH_SECONDS = 1


def main(arguments: Sequence[str]) -> int:
    """Show the state of sweeps or runs; the exit status."""
    parser = Flags("status")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--json", action="store_true")
    options, words = parser.split(arguments)
    folders = [folder for word in words for folder in _folders(word)]
    if not folders:
        raise ConfigError("FOLDER", "give a sweep or a run: hydrant status multirun/lr_study")
    if options.watch and (options.json or not is_terminal()):
        raise ConfigError("--watch", "draws in a terminal; leave it out, or ask again with --json")
    if options.watch:
        _watch(folders)
    found = {relative(folder): standings(folder) for folder in folders}
    if options.json:
        told = {folder: [dataclasses.asdict(own) for own in runs] for folder, runs in found.items()}
        emit(json.dumps(told))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        say("\n\n".join("\n".join(table(folder, runs, width)) for folder, runs in found.items()))
    return 0


def _folders(word: str) -> list[Path]:
    """The sweep or the run that a word names, or the sweeps below it.

    Raises:
        ConfigError: there are none.
    """
    folder = Path(word).resolve()
    if not folder.is_dir():
        beside = [path for path in folder.parent.glob("*") if (path / ".hydra").is_dir() or _sweeps(path)]
        told = suggestion(
            folder.name, [path.name for path in beside], f"Beside it in {relative(folder.parent)}"
        )
        raise ConfigError("FOLDER", f"{word!r} is no folder{told if beside else ''}")
    found = [folder] if standings(folder) else _sweeps(folder)
    if not found:
        raise ConfigError("FOLDER", f"no runs in {word}; give the folder of a sweep or of a run")
    return found


def _sweeps(folder: Path) -> list[Path]:
    """A folder, if it is a sweep's, and those below it: multirun/<name>, multirun/<date>/<time>."""
    levels = ("sweep.json", "*/sweep.json", "*/*/sweep.json")
    return sorted(plan.parent for level in levels for plan in folder.glob(level))


def _watch(folders: Sequence[Path]) -> None:
    """Draw it until nothing is queued or running."""

    def lines(width: int, height: int) -> list[str]:
        room = height // len(folders)
        return [line for f in folders for line in table(relative(f), standings(f), width, room)][:height]

    with drawn(lines):
        while any(_goes_on(run) for folder in folders for run in standings(folder)):
            time.sleep(_WATCH_SECONDS)


def _goes_on(run: Standing) -> bool:
    return run.state == "queued" or run.is_running
