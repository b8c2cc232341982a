"""Replace what a known key takes from a dict of a module by the entry itself."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from hydrant.commands.eject.bundle import defining_module, is_copied, read_module
from hydrant.commands.eject.known import evaluate
from hydrant.commands.eject.source_edits import Edit, Source

Imports = dict[str, tuple[str, str | None]]


def with_chosen_entries(text: str, known: Mapping[str, Any], module: str, imports: Imports) -> str:
    """Return source in which `NORMS[norm]` is the entry of the dict `NORMS` that the known value of `norm` selects.

    Args:
        text: of a definition of the module.
        known: values by name.
        module: where the definition is.
        imports: where names in the module come from; what the entries use is added.
    """
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        match node:
            case ast.Subscript(value=ast.Name(id=table), slice=ast.Name() | ast.Subscript() as key):
                origin, value = _origin(table, module, imports), evaluate(key, known)
                entry = _entry(table, origin, value) if origin and isinstance(value, str) else None
                if entry is not None:
                    edits.append(Edit(*source.span(node), entry))
                    imports |= {name: (origin, name) for name in read_module(origin).definitions}
                    imports |= read_module(origin).imports
            case _:
                pass
    return source.apply(edits).text


def _origin(table: str, module: str, imports: Imports) -> str:
    """Return the module that defines a name; an empty text if its source is not copied."""
    if table in read_module(module).definitions:
        return module
    origin, original = imports.get(table, ("", None))
    return defining_module(origin, original) if original is not None and is_copied(origin) else ""


def _entry(table: str, module: str, key: object) -> str | None:
    source = Source(read_module(module).definitions[table].text)
    value = getattr(source.tree.body[0], "value", None)
    if not isinstance(value, ast.Dict):
        return None
    for name, entry in zip(value.keys, value.values, strict=True):
        if isinstance(name, ast.Constant) and name.value == key and not isinstance(entry, ast.Lambda):
            return source.text_of(entry)
    return None
