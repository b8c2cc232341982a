"""Gather the definitions of a program, simplified for a config, and what each of them needs."""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hydrant.commands.eject import couplings
from hydrant.commands.eject.bundle import (
    Definition,
    defining_module,
    is_copied,
    is_own,
    is_stand_in,
    read_module,
    renamed,
)
from hydrant.commands.eject.couplings import COPIED, OF_OWN_PARTS, PROGRAM, REPLACED
from hydrant.commands.eject.fold import fold, without_unused_locals
from hydrant.commands.eject.narrow import with_narrow_annotations
from hydrant.commands.eject.own import is_of_user, without_helpers
from hydrant.commands.eject.parts import Origin, Parts
from hydrant.commands.eject.prune import with_short_docs, without_parameter
from hydrant.commands.eject.sections import section_of
from hydrant.commands.eject.source_edits import Source, names_in, replace_calls
from hydrant.errors import ConfigError


@dataclass
class Entry:
    """A definition in the file."""

    text: str
    section: str
    order: tuple[int, int, int]
    is_bundled: bool
    is_written: bool = False  # for this config; it stands after what it uses


class Gathered:
    """The definitions of a program by name, with the constants and the imports that they need."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.entries = dict[str, Entry]()
        self.origins = dict[str, str]()  # the module of each definition, to notice two of one name
        self.constants = set[str]()
        self.external = dict[str, Origin]()
        self._modules = list[str]()
        self._counter = itertools.count()

    def need(self, module: str, name: str) -> None:
        """Add a definition and all that it needs."""
        if is_stand_in(module):
            self._need_stand_in(module, name)
            return
        found = read_module(module).definitions[name]
        name = found.name
        if name in self.entries:
            if self.origins[name] != module:
                if is_of_user(module) or is_of_user(self.origins[name]):
                    message = f"{module} defines {name}, a name that the ejected file has already"
                    raise ConfigError("eject", message, remedy="rename it there")
                raise AssertionError(f"{name} is defined in {module} and {self.origins[name]}")
            return
        if module not in self._modules:
            self._modules.append(module)
        text, imports = self._prepared(found)
        self.origins[name] = module
        is_bundled = not module.startswith(PROGRAM)
        order = 0 if is_bundled else 1, -self._modules.index(module), found.position
        self.entries[name] = Entry(text, section_of(module), order, is_bundled)
        self._need_names(text, module, imports)

    def _need_stand_in(self, module: str, name: str) -> None:
        if name in self._parts.constants:
            self.constants.add(name)
        elif name in self._parts.aliases:
            self.need(*self._parts.aliases[name])
        elif name in self._parts.written and name not in self.entries:
            written = self._parts.written[name]
            entry = Entry(written.text, written.section, (2, 0, 0), False, is_written=True)
            self.entries[name] = entry
            self.origins[name] = module
            self._need_names(written.text, "", written.imports)
            entry.order = (2, 0, next(self._counter))  # after what it needs
        elif name not in self.entries:
            raise AssertionError(f"the program uses {name}, which nothing gives")

    def _prepared(self, found: Definition) -> tuple[str, Mapping[str, Origin]]:
        imports = dict(read_module(found.module).imports)
        text = found.text
        if found.module.startswith(COPIED["schedule"]):
            text = without_clock(text)
            imports |= {"Any": ("typing", "Any"), "Callable": ("collections.abc", "Callable")}
        for (origin, own), (module, name) in REPLACED.items():
            if imports.get(own) == (origin, own):
                text, imports[name] = renamed(text, {own: name}), (module, name)
        if is_of_user(found.module):
            text = replace_calls(text, without_helpers)
        elif found.name in self._parts.known_in or not found.module.startswith(PROGRAM):
            text = with_short_docs(text)
        known = {**self._parts.known, **self._parts.known_in.get(found.name, {})}
        text = with_narrow_annotations(text, known)
        for name, written in self._parts.expressions.items():
            if name in names_in(text):
                text = replace_calls(
                    text, lambda call, n=name, w=written: w.text if _calls(call, n) else None
                )
                imports |= written.imports
        if is_of_user(found.module):
            return text, imports  # what looks unused there may draw random numbers or change a state
        return without_unused_locals(fold(text, known)), imports

    def _need_names(self, text: str, module: str, imports: Mapping[str, Origin]) -> None:
        definitions = read_module(module).definitions if module else {}
        for name in sorted(names_in(text)):
            if name in definitions:
                self.need(module, name)
            elif name in imports:
                origin, original = imports[name]
                if is_stand_in(origin):
                    self.need(origin, original or name)
                elif is_copied(origin) and original is not None:
                    self._need_imported(module, origin, original)
                else:
                    self._need_external(module, name, (origin, original))
            elif is_of_user(module) and hasattr(importlib.import_module(module), name):
                message = f"{module} defines {name} by a statement that cannot be copied; define it by def, class or ="
                raise ConfigError("eject", message)
            elif name in self._parts.constants:
                self.constants.add(name)

    def _need_imported(self, module: str, origin: str, name: str) -> None:
        """Add a definition of another module that is copied. Own parts of the user get short forms of Hydrant's."""
        if is_of_user(module) and is_own(origin) and name in OF_OWN_PARTS:
            self.need(f"{PROGRAM}.{OF_OWN_PARTS[name]}", name)
        else:
            self.need(defining_module(origin, name), name)

    def _need_external(self, module: str, name: str, origin: Origin) -> None:
        before = self.external.setdefault(name, origin)
        if before != origin and is_of_user(module) and _imported(before) is not _imported(origin):
            message = f"{module} imports {name} from {origin[0]}, but the file has another {name}"
            raise ConfigError("eject", message, remedy="rename it there")


def _calls(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name


def _imported(origin: Origin) -> object:
    return pkgutil.resolve_name(origin[0] if origin[1] is None else f"{origin[0]}:{origin[1]}")


def without_clock(text: str) -> str:
    """Return a definition of `hydrant.schedules` that takes no clock.

    >>> print(without_clock("@framed\\ndef f(clock: Clock, end: int):\\n    return clock.updates(end, '')"))
    def f(end: int):
        return end
    """
    text = replace_calls(text.removeprefix(couplings.FRAMED), _without_clock).replace(": object", ": Any")
    text = re.sub(rf"(-> |: ){couplings.CURVE}\b", r"\1Callable[[int], float]", text)
    tree = Source(text).tree
    has_clock = any(isinstance(node, ast.arg) and node.arg == couplings.CLOCK for node in ast.walk(tree))
    return without_parameter(text, couplings.CLOCK) if has_clock else text


def _without_clock(call: ast.Call) -> str | None:
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=couplings.CLOCK)), args=[*_, duration, _]):
            return ast.unparse(duration)
        case ast.Call(func=ast.Name(id=couplings.SPLIT_RUN), args=[_, warmup, cooldown]):
            return f"({ast.unparse(warmup)}, {ast.unparse(cooldown)})"
        case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=couplings.CLOCK), *others], keywords=[]):
            return f"{name}({', '.join(map(ast.unparse, others))})"
        case _:
            return None
