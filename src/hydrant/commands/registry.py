"""The commands of `hydrant`: one record for each, which the command line, its help and its completion read."""

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hydrant.installation import entry_points


@dataclass(frozen=True)
class Command:
    """A command. Installed packages add theirs by entry points of the group `hydrant.commands`.

    Args:
        summary: what `hydrant --help` says about it.
        main: `package.module:function`, called with the words after the command; returns the exit status. By default
            it is `main` in the module `command` of the package, which is imported when the command is called. Beside
            its module, `<name>.txt` is what `--help` prints.
        answers: `package.module:Class` of what it prints with `--json`, and of a file with which it ends; by default
            the class with its name, beside `main`.
        section: where `hydrant --help` lists it.
        groups: a pattern of the config groups whose overrides it takes.
        writes: its results are files, or at W&B. The result of any other command is what it prints.
        runs_own_code: it needs parts of the user's, and so imports from the working folder.
    """

    name: str
    summary: str
    main: str = ""
    answers: tuple[str, ...] = ()
    section: str = "More"
    groups: str = ""
    writes: bool = False
    runs_own_code: bool = True

    @property
    def function(self) -> str:
        """Where its function is."""
        return self.main or f"hydrant.commands.{self.name}:main"

    @property
    def records(self) -> list[type]:
        """Its answers."""
        beside = f"{self.function.partition(':')[0]}:{self.name.capitalize()}"
        return [resolve_name(path) for path in self.answers or [beside]]

    @property
    def help(self) -> Path:
        """The file with its help."""
        spec = find_spec(self.function.partition(":")[0])
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).with_name(f"{self.name}.txt")


SAVED_RUN, ONE_RUN = "data|precision|task", "(?!sweep$|hydra/).*"
"""The config groups of a command that reads a saved run, and of one that reads a config of one run."""

# fmt: off
_COMMANDS = (
    Command("train", "train a model, or a sweep of them with --multirun", section="Start", groups=".*", writes=True,
            answers=("hydrant.records.answers:Train", "hydrant.records.answers:Sweep")),
    Command("preview", "show the schedules, groups and size of a config without training", section="Start",
            groups=ONE_RUN),
    Command("status", "show the progress of a sweep's runs", section="Look", runs_own_code=False),
    Command("evaluate", "evaluate a run or a checkpoint", section="Use", groups=SAVED_RUN),
    Command("trust", "let configs name the packages of a project of yours", runs_own_code=False),
    Command("list", "list the config groups with their options, or the compile backends", runs_own_code=False),
)
# fmt: on


@cache
def commands() -> dict[str, Command]:
    """Return the commands by name: those of the core, then those of installed packages."""
    points = entry_points("hydrant.commands").values()
    added = (replace(one := p.load(), main=one.main or f"{p.module}.command:main") for p in points)
    return {one.name: one for one in (*_COMMANDS, *added, *_COMMANDS)}  # none replaces the core's


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of an error, and then of the answers of all commands, by the names of their classes."""
    from hydrant.records.answers import ErrorLine
    from hydrant.records.schema import schema_of

    kinds = [(kind, command.name) for command in commands().values() for kind in command.records]
    answers = {kind.__name__.lower(): schema_of(kind, name) for kind, name in kinds}
    return {"error": schema_of(ErrorLine), **dict(sorted(answers.items()))}


RETIRED = {
    "agent": "`wandb agent` trains the runs of a W&B sweep; `hydrant docs wandb_sweeps` has the files",
    "watch": "`hydrant compare RUNS --html FILE --follow` writes the page again while runs train",
    "eject": "`hydrant docs own-loop` shows how to train a saved run by a loop of your own",
}
"""By the name of a command of the version before: what takes its place."""

SECTIONS = ("Start", "Look", "Use", "More")
"""What the commands are for, in the order of `hydrant --help`."""
