"""Let a package export names whose modules it imports only when a name is used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that imports a module only when its export is used.

    The exports are what the package's file imports for type checkers: `from module import name as name`, below
    `if TYPE_CHECKING:`. PEP 562 describes the mechanism.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        exports = _exports(package)
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(exports[name]), name)

    def __dir__() -> list[str]:  # noqa: N807
        return [*vars(sys.modules[package]), *_exports(package)]

    return __getattr__, __dir__


@cache
def _exports(package: str) -> Mapping[str, str]:
    """Return the modules of the names that the file of a package imports under the same name."""
    file = Path(str(sys.modules[package].__file__))  # `inspect` would ask the package for attributes
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname}
