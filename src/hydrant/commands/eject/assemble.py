"""Put the definitions of a program together into one file."""

from __future__ import annotations

from collections.abc import Iterable

from hydrant.commands.eject.bundle import read_module
from hydrant.commands.eject.couplings import PROGRAM
from hydrant.commands.eject.gather import Gathered
from hydrant.commands.eject.layout import comment, docstring, import_lines, joined
from hydrant.commands.eject.parts import Constant, Parts
from hydrant.commands.eject.sections import SECTIONS
from hydrant.commands.eject.shorten import shorten
from hydrant.commands.eject.source_edits import is_value, names_in

_CONSTANT_IMPORTS: dict[str, tuple[str, str | None]] = {
    "torch": ("torch", None),
    "Path": ("pathlib", "Path"),
    "Fraction": ("fractions", "Fraction"),
    "os": ("os", None),
    "sys": ("sys", None),
}


def assemble(parts: Parts, doc: str) -> str:
    """Return the text of the program."""
    gathered = Gathered(parts)
    gathered.need(f"{PROGRAM}.loop", "main")
    shorten(gathered, parts)
    constants = {name: value for name, value in parts.constants.items() if name in gathered.constants}
    blocks = [
        f"{docstring(doc)}\n\n{_imports(gathered, constants.values())}\n\n{_lines_of(constants, gathered)}"
    ]
    for section, title in SECTIONS.items():
        if texts := _section(gathered, section):
            blocks.append(f"# {'-' * 12} {title}\n" + joined(texts))
    blocks.append(read_module(f"{PROGRAM}.loop").last)
    return "\n\n".join(block.strip("\n") + "\n" for block in blocks)


def _section(gathered: Gathered, section: str) -> list[str]:
    """Return the definitions of a section in their order: values that need no function first."""
    entries = gathered.entries
    functions = {name for name, entry in entries.items() if not is_value(entry.text)}

    def place(name: str) -> tuple[bool, tuple[int, int, int]]:
        entry = entries[name]
        is_late = entry.is_written or name in functions or bool(names_in(entry.text) & functions)
        return is_late, entry.order

    names = sorted((name for name, entry in entries.items() if entry.section == section), key=place)
    return [entries[name].text for name in names]


def _imports(gathered: Gathered, constants: Iterable[Constant]) -> str:
    used = _used_names(gathered, constants)
    known = {**_CONSTANT_IMPORTS, **gathered.external}
    needed = {name: known[name] for name in sorted(used & known.keys())}
    return "\n".join(["from __future__ import annotations", "", *import_lines(needed)])


def _lines_of(constants: dict[str, Constant], gathered: Gathered) -> str:
    """Return the constants that are used, each below its heading."""
    lines, group, used = list[str](), "", _used_names(gathered, constants.values())
    headings = list(dict.fromkeys(constant.group for constant in constants.values()))
    for name, constant in sorted(constants.items(), key=lambda item: headings.index(item[1].group)):
        if name not in used:
            continue
        if constant.group != group:
            group = constant.group
            lines += ["", f"# {group}"] if lines else [f"# {group}"]
        lines.append(f"{name} = {constant.value}  {comment(constant.comment)}".rstrip())
    return "\n".join(lines) + "\n"


def _used_names(gathered: Gathered, constants: Iterable[Constant]) -> set[str]:
    """Return the names in the definitions and in the values of the constants."""
    texts = [entry.text for entry in gathered.entries.values()]
    return set[str]().union(*map(names_in, [*texts, *(constant.value for constant in constants)]))
