"""Collect the definitions that a program needs from the modules that have them."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hydrant.commands.eject.couplings import PROGRAM
from hydrant.commands.eject.own import is_of_user
from hydrant.commands.eject.parts import Origin
from hydrant.commands.eject.source_edits import Edit, Source

_STAND_INS = (f"{PROGRAM}.settings", f"{PROGRAM}.parts")
_OWN = "hydrant."


@dataclass
class Definition:
    """A definition at the top level of a module: a function, a class or an assignment."""

    name: str
    module: str
    text: str
    position: int  # in its module


@dataclass
class Module:
    """The definitions and imports of a module, by name."""

    name: str
    definitions: dict[str, Definition] = field(default_factory=dict[str, Definition])
    imports: dict[str, Origin] = field(default_factory=dict[str, Origin])
    last: str = ""  # statements that only run: `if __name__ == ...`


@functools.cache
def read_module(name: str) -> Module:
    """Read a module's source. The result is shared: do not change it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    source = Source(Path(spec.origin).read_text(encoding="utf-8"))
    module = Module(name)
    for position, statement in enumerate(source.tree.body):
        match statement:
            case ast.Import(names=aliases):
                for alias in aliases:
                    bound = alias.asname or alias.name.partition(".")[0]
                    module.imports[bound] = (alias.name, None)
            case ast.ImportFrom(module=relative, names=aliases, level=level):
                origin = importlib.util.resolve_name("." * level + (relative or ""), spec.parent)
                for alias in aliases:
                    module.imports[alias.asname or alias.name] = (origin, alias.name)
            case ast.FunctionDef(name=defined) | ast.ClassDef(name=defined):
                text = source.text[slice(*source.lines_of(statement))]
                module.definitions[defined] = Definition(defined, name, text, position)
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                text = source.text[slice(*source.lines_of(statement))]
                bound = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
                for each in bound:
                    module.definitions[each] = Definition(bound[0], name, text, position)
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                module.last = source.text[slice(*source.lines_of(statement))]
            case _:
                pass
    return module


def is_own(module: str) -> bool:
    """Return whether a module belongs to Hydrant, so that what comes from it must be copied."""
    return module == "hydrant" or module.startswith(_OWN)


def is_copied(module: str) -> bool:
    """Return whether the source of a module is copied into programs."""
    return is_own(module) or is_of_user(module)


def is_stand_in(module: str) -> bool:
    return module in _STAND_INS


def defining_module(module: str, name: str) -> str:
    """Return the module that defines a name, where another one re-exports it."""
    found = read_module(module)
    if name in found.definitions:
        return module
    if name in found.imports and found.imports[name][1] is not None:
        return defining_module(found.imports[name][0], found.imports[name][1] or name)
    value = getattr(importlib.import_module(module), name)
    return getattr(value, "__module__", module)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return the source with names replaced, also in attributes of `self`."""
    source = Source(text)
    edits = list[Edit]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id in names:
            edits.append(Edit(*source.span(node), names[node.id]))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            start, _ = source.span(node)
            word = "class " if isinstance(node, ast.ClassDef) else "def "
            at = source.text.index(word + node.name, start) + len(word)
            edits.append(Edit(at, at + len(node.name), names[node.name]))
    return source.apply(edits).text
