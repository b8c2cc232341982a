"""`status`: show the progress of sweeps and runs, while they run or afterwards. Imports no torch."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydrant.config.command_line import Flags, named_folder
from hydrant.errors import ConfigError
from hydrant.records import Answer, RunProgress
from hydrant.runs.folder import SWEEP_PLAN, is_run_folder, newest_folders
from hydrant.sweeps.plan import sweep_progress, usable_plan
from hydrant.sweeps.results_table import by_urgency, print_runs
from hydrant.terminal import console as terminal_console

_MAX_LISTED = 10  # runs of a sweep in the answer for programs


class Status(Answer):
    """The runs of each sweep or run.

    Attributes:
        states: How many runs of each folder are in each state.
        folders: The runs, by the folder that was given or found: of more than 10, the most urgent ones, such as running
            and failed ones. With `--all`, all.
    """

    states: Mapping[str, Mapping[str, int]]
    folders: Mapping[str, Sequence[RunProgress]]


def main(arguments: Sequence[str]) -> int:
    """Show the state of sweeps or runs and return the exit status."""
    options, words = Flags("status", all=False).split(arguments)
    folders = [folder for word in words for folder in _folders(word)]
    if not folders:
        example = newest_folders("hydrant status multirun/lr_study")
        raise ConfigError("FOLDER", remedy=f"give a sweep or a run{example}")
    for folder in folders:
        if damage := usable_plan(folder)[1]:
            terminal_console.notice(damage)
    progress = {terminal_console.relative(folder): sweep_progress(folder) for folder in folders}
    if terminal_console.wants_json():
        states = {f: Counter(str(run.state) for run in runs) for f, runs in progress.items()}
        for folder, runs in progress.items():
            places = by_urgency(runs, "")[: None if options.all else _MAX_LISTED]
            progress[folder] = [runs[place] for place in sorted(places)]
        terminal_console.answer(Status(states, progress))
    else:
        fits = terminal_console.is_terminal(sys.stdout) and not options.all  # with room for the prompt
        height = (terminal_console.console().height - 1) // len(progress) - 1 if fits else None
        for n, (folder, runs) in enumerate(progress.items()):
            if n:
                terminal_console.say("")
            print_runs(folder, runs, height, rest=" (--all lists them)")
    return 0


def _folders(word: str) -> list[Path]:
    """Return the folder of the sweep or run that a word names, or of the sweeps in it.

    Raises:
        ConfigError: the folder does not exist or has no runs.
    """
    folder = named_folder(word, lambda folder: is_run_folder(folder) or bool(_sweeps(folder)))
    folders = [folder] if sweep_progress(folder) else _sweeps(folder)
    if not folders:
        raise ConfigError("FOLDER", f"no runs in {word}", remedy="give the folder of a sweep or of a run")
    return folders


def _sweeps(folder: Path) -> list[Path]:
    """Return the folders of sweeps at or below a folder, such as multirun/<name> and multirun/<date>/<time>."""
    levels = (SWEEP_PLAN, f"*/{SWEEP_PLAN}", f"*/*/{SWEEP_PLAN}")
    return sorted(plan.parent for level in levels for plan in folder.glob(level))
