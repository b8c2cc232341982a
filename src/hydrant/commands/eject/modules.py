"""Source that does not name the modules it takes definitions from."""

from __future__ import annotations

import ast
import importlib

from hydrant.commands.eject.bundle import is_own
from hydrant.commands.eject.source_edits import Edit, Source


def without_module_names(text: str, imports: dict[str, tuple[str, str | None]]) -> str:
    """Return a source in which `seeding.mix` is `mix`; adds the imports of these names."""
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        origin, original = imports.get(node.value.id, ("", None))
        if original is not None and is_own(origin) and _is_module(f"{origin}.{original}"):
            edits.append(Edit(*source.span(node), node.attr))
            imports[node.attr] = (f"{origin}.{original}", node.attr)
    return source.apply(edits).text


def without_local_imports(text: str, imports: dict[str, tuple[str, str | None]]) -> str:
    """Return a source without the imports inside its functions; adds them to those of the file."""
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            start, end = source.lines_of(node)
            end += source.text[end:].startswith("\n")  # the empty line after it
            edits.append(Edit(start, end, ""))
            imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return source.apply(edits).text


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
