"""The commands of `hydrant`: one record for each, which the command line and its completion read, and their help.

Help is in the width of the terminal. The names of groups include those of the user's conf folder.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

from hydrant.installation import entry_points
from hydrant.terminal.console import FLAG, has_style


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
            answers=("hydrant.records:Train", "hydrant.records:Sweep")),
    Command("preview", "show the schedules, groups and size of a config without training", section="Start",
            groups=ONE_RUN),
    Command("status", "show the progress of a sweep's runs", section="Look", runs_own_code=False),
    Command("evaluate", "evaluate a run or a checkpoint", section="Use", groups=SAVED_RUN),
    Command("trust", "let configs name the packages of a project of yours", runs_own_code=False),
)
# fmt: on


@cache
def commands() -> dict[str, Command]:
    """Return the commands by name: those of the core, then those of installed packages."""
    points = entry_points("hydrant.commands").values()
    added = (replace(one := p.load(), main=one.main or f"{p.module}.command:main") for p in points)
    return {one.name: one for one in (*_COMMANDS, *added, *_COMMANDS)}  # none replaces the core's


SECTIONS = ("Start", "Look", "Use", "More")
"""What the commands are for, in the order of `hydrant --help`."""


_MAX_WIDTH = 110
_JSON = f"{FLAG} prints one JSON object, or an error as one on stderr"
_OF_EXTENSION = re.compile(r"^(.*) \[(\w+)\]\n", re.MULTILINE)
"""A row that only an installed extension has."""
_HEADING = re.compile(r"^(Examples|Options|More options|Groups|Exit status):", re.MULTILINE)


def overview() -> str:
    """Return what `hydrant --help` prints."""
    width = max(map(len, commands()))
    rows = [(known.section, f"  {name:<{width}}  {known.summary}") for name, known in commands().items()]
    parts = ["\n".join([f"{title}:", *(row for of, row in rows if of == title)]) for title in SECTIONS]
    more = "`hydrant help <command>` explains a command. `hydrant --version` prints version and commit."
    return page("\n\n".join(["hydrant <command> [overrides]", *parts, more]))


def help_of(command: str) -> str:
    """Return what `hydrant <command> --help` prints, with the command that trains as it was called."""
    program = Path(sys.argv[0]).name
    is_script = program.endswith(".py") and program != "__main__.py"  # that of `python -m hydrant`
    text = _text_of(command).replace("{train}", f"python {program}" if is_script else "hydrant train")
    fields = "; `hydrant docs json` has the fields." if "docs" in commands() else "."
    return page(f"{text}\n\n{_JSON}{fields}{_groups(command)}")


def page(text: str) -> str:
    """Return a page whose lines fit into the terminal, with headings in bold where there is one.

    A paragraph is lines without an indent. A row has an indent of two, and two spaces before its explanation. A line
    with a larger indent continues the row above.
    """
    width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
    blocks = [_rows_of(block, width) for block in re.split(r"\n{2,}", text)]
    wrapped = "\n\n".join("\n".join(block) for block in blocks)
    return _HEADING.sub(r"\033[1m\g<0>\033[0m", wrapped) if has_style(sys.stdout) else wrapped


def flags_of(command: str) -> list[str]:
    """Return the flags that the help page of a command explains.

    >>> flags_of("status")
    ['--all', '--help', '--json']
    """
    rows = re.findall(r"^  (--.+?)(?:  |$)", _text_of(command), flags=re.M)
    return sorted({flag for row in rows for flag in re.findall(r"--[a-z-]+", row)} | {"--help", FLAG})


def _text_of(command: str) -> str:
    text = commands()[command].help.read_text(encoding="utf-8")
    return _OF_EXTENSION.sub(
        lambda row: f"{row[1]}\n" * bool(find_spec(f"hydrant.extensions.{row[2]}")), text
    ).strip()


def _groups(command: str) -> str:
    """Return the names of the config groups that a command reads; "" for a command that reads none."""
    from hydrant.config.groups import group_options

    groups = [group for group in group_options() if re.fullmatch(commands()[command].groups, group)]
    how = "; `hydrant list groups` lists their options" if "list" in commands() else ""
    return f"\n\nGroups: {', '.join(groups)}{how}." if groups else ""


def _rows_of(block: str, width: int) -> Iterator[str]:
    """Yield the lines of a block: its paragraph, then its rows in two columns."""
    lines = block.splitlines()
    paragraph = [line for line in lines if not line.startswith("  ")]
    if paragraph:
        yield from _wrapped(" ".join(paragraph), width)
    rows = [re.split(r" {2,}", row, maxsplit=1) for row in _joined(lines[len(paragraph) :])]
    fitting = [len(row[0]) for row in rows if len(row) > 1 and len(row[0]) <= width // 2 - 4]
    column = max(fitting, default=0) + 4
    for term, *explanation in rows:
        if not explanation:
            yield from _command(term, width)
        elif len(term) + 4 <= column:
            first = f"  {term}".ljust(column)
            yield from _wrapped(explanation[0], width, first, " " * column)
        else:
            yield from _command(term, width)
            yield from _wrapped(explanation[0], width, " " * 6, " " * 6)


def _joined(lines: Iterable[str]) -> list[str]:
    """Return the rows without their indent, each with the lines that continue it."""
    rows = list[str]()
    for line in lines:
        before = f"{rows.pop()} " if line.startswith("   ") and rows else ""
        rows.append(before + line.strip())
    return rows


def _command(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a command; each but the last ends as a shell continues a line."""
    *lines, last = _wrapped(text, width - 2, "  ", " " * 6)
    yield from (f"{line} \\" for line in lines)
    yield last


def _wrapped(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    wrapper = textwrap.TextWrapper(width, first, later, break_on_hyphens=False, break_long_words=False)
    return wrapper.wrap(text)
