"""How packages export names that are imported when they are used, and imports with the garbage collector paused."""

import contextlib
import gc
import importlib
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any


def lazy_exports(package: str, group: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that imports a module only when its export is used.

    The exports are what its file imports `as` itself, for type checkers only, and the entry points of the group.
    PEP 562 describes the mechanism.
    """
    text = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    exports = {
        name: module
        for module, name in re.findall(r"^    from (\S+) import (\S+) as \2$", text, re.MULTILINE)
    }

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in exports:
            return getattr(importlib.import_module(exports[name]), name)
        if group and (point := _entry_points(group).get(name)):
            return point.load()
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:  # noqa: N807
        return [*vars(sys.modules[package]), *exports, *(_entry_points(group) if group else ())]

    return __getattr__, __dir__


def _entry_points(group: str) -> Any:
    from hydrant.installation import entry_points  # slow

    return entry_points(group)


@contextlib.contextmanager
def paused_gc() -> Generator[None]:
    """Pause the garbage collector, which would scan the half million objects of an import of torch again and again.

    Then they belong to its oldest generation, which it scans least often.
    """
    was_enabled, num_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        # Counting what is frozen takes as long as a scan. Other frozen objects would be given back too.
        if len(sys.modules) > num_modules and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
