"""Let a package export names whose modules it imports only when a name is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, exports: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that imports a module only when its export is used.

    `exports` gives the module of each name. PEP 562 describes the mechanism.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(exports[name]), name)

    def __dir__() -> list[str]:  # noqa: N807
        return [*vars(sys.modules[package]), *exports]

    return __getattr__, __dir__
