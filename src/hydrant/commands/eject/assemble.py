"""Put the definitions of a program together into one file, without what they have for other configs."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping

from hydrant.commands.eject.bundle import read_module, renamed
from hydrant.commands.eject.couplings import PROGRAM
from hydrant.commands.eject.gather import Gathered
from hydrant.commands.eject.layout import comment, docstring, import_lines, joined
from hydrant.commands.eject.parts import Constant, Origin, Parts
from hydrant.commands.eject.prune import drop_unused_attributes, drop_unused_methods, drop_unused_parameters
from hydrant.commands.eject.sections import SECTIONS
from hydrant.commands.eject.source_edits import bound_names, is_value, names_in

_CONSTANT_IMPORTS: dict[str, Origin] = {
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
    imports = _imports(gathered, constants.values())
    blocks = [f"{docstring(doc)}\n\n{imports}\n\n{_lines_of(constants, gathered)}"]
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
    used, groups = _used_names(gathered, constants.values()), dict[str, list[str]]()
    for name, constant in constants.items():
        line = f"{name} = {constant.value}  {comment(constant.comment)}".rstrip()
        groups.setdefault(constant.group, []).extend([line] if name in used else [])
    blocks = ["\n".join([f"# {group}", *lines]) for group, lines in groups.items() if lines]
    return "\n\n".join(blocks) + "\n"


def _used_names(gathered: Gathered, constants: Iterable[Constant]) -> set[str]:
    """Return the names in the definitions and in the values of the constants."""
    texts = [entry.text for entry in gathered.entries.values()]
    return set[str]().union(*map(names_in, [*texts, *(constant.value for constant in constants)]))


def shorten(gathered: Gathered, parts: Parts) -> None:
    """Shorten the definitions, and leave only those that `main` needs."""
    entries = gathered.entries
    texts = {name: entry.text for name, entry in entries.items()}
    bundled = {name for name, entry in entries.items() if entry.is_bundled}

    def inherits(name: str, method: str) -> bool:
        kind = getattr(importlib.import_module(gathered.origins[name]), name)
        return any(hasattr(base, method) for base in kind.__mro__[1:])

    texts = drop_unused_methods(texts, bundled, inherits)
    texts = drop_unused_attributes(texts, bundled)
    texts = drop_unused_parameters(texts, list(texts))
    public = _public_names(texts, gathered.external)
    renames = {**public, **{alias: name for alias, (_, name) in parts.aliases.items()}}
    texts = {public.get(name, name): renamed(text, renames) for name, text in texts.items()}
    entries = {public.get(name, name): entry for name, entry in entries.items()}
    gathered.origins = {public.get(name, name): origin for name, origin in gathered.origins.items()}
    gathered.entries = {name: entries[name] for name in _needed_by_main(texts)}
    for name, entry in gathered.entries.items():
        entry.text = texts[name]


def _public_names(texts: Mapping[str, str], external: Collection[str]) -> dict[str, str]:
    """Return other names for private ones, unless something has them."""
    public = {name: name.lstrip("_") for name in texts if name.startswith("_")}
    taken = {*texts, *external, *(bound for text in texts.values() for bound in bound_names(text))}
    return {name: short for name, short in public.items() if short not in taken}


def _needed_by_main(texts: Mapping[str, str]) -> list[str]:
    """Return the definitions that `main` needs, directly or by others, in their order in `texts`."""
    found, waiting = {"main"}, ["main"]
    while waiting:
        new = (names_in(texts[waiting.pop()]) & texts.keys()) - found
        found |= new
        waiting += new
    return [name for name in texts if name in found]
