"""How packages export names that are imported when they are used, and imports with the garbage collector paused."""

import contextlib
import gc
import importlib
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that imports a module only when its export is used.

    The exports are what its file imports `as` itself, for type checkers only. PEP 562 describes the mechanism.
    """
    text = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    exports = {
        name: module
        for module, name in re.findall(r"^    from (\S+) import (\S+) as \2$", text, re.MULTILINE)
    }

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(exports[name]), name)

    def __dir__() -> list[str]:  # noqa: N807
        return [*vars(sys.modules[package]), *exports]

    return __getattr__, __dir__


_may_unfreeze = False
"""Whether all that is frozen was frozen by `import_without_gc`, in the present `restored_gc`."""


@contextlib.contextmanager
def import_without_gc() -> Generator[None]:
    """Pause the garbage collector during imports, then exclude all existing objects from later collections.

    Use it only for imports of Hydrant's and libraries' modules, before the run creates objects that must be freed,
    such as its model.

    Importing torch creates about half a million objects that live as long as the process. Scanning them repeatedly
    during the import takes a fifth of the import time; scanning them again at exit takes most of the exit time.
    After Triton is imported, the objects stay in the collector, because Triton's bindings report every object
    that is not freed at exit.
    """
    global _may_unfreeze
    num_modules = len(sys.modules)
    with paused_gc():
        try:
            yield
        finally:
            if len(sys.modules) > num_modules and "triton" not in sys.modules:
                _may_unfreeze = _may_unfreeze or not gc.get_freeze_count()
                gc.freeze()


@contextlib.contextmanager
def paused_gc() -> Generator[None]:
    """Pause the garbage collector. What it finds later includes what the block leaves."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def restored_gc() -> Generator[None]:
    """Give the objects of this process back to the garbage collector, from which `import_without_gc` takes them.

    The user's own objects are among them. What was frozen before stays so.
    """
    global _may_unfreeze
    before, _may_unfreeze = _may_unfreeze, False
    try:
        yield
    finally:
        if _may_unfreeze:
            gc.unfreeze()
        _may_unfreeze = before
