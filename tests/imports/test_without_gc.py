"""Imports without the garbage collector: what they create is excluded from collections, later garbage is collected."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import run_command

from hydrant.imports.lazy import import_without_gc


@pytest.mark.parametrize("was_enabled", [True, False])
def test_restores_the_collector(was_enabled: bool) -> None:
    """Also in nested imports, and after one that fails."""
    (gc.enable if was_enabled else gc.disable)()
    try:
        with import_without_gc():
            with import_without_gc():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
        with pytest.raises(ModuleNotFoundError), import_without_gc():
            importlib.import_module("no_such_module")
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


IN_A_FRESH_PROCESS = """
import gc, sys, weakref
from hydrant.imports.lazy import import_without_gc

with import_without_gc():
    pass
assert gc.get_freeze_count() == 0, "nothing was imported"
with import_without_gc():
    import decimal
assert not any(item is decimal.Decimal for item in gc.get_objects())
assert gc.get_freeze_count() > 100

class Node: ...

node = Node()
node.itself, reference = node, weakref.ref(node)
del node
gc.collect()
assert reference() is None

count, sys.modules["triton"] = gc.get_freeze_count(), sys
with import_without_gc():
    import fractions
assert gc.get_freeze_count() == count
"""


def test_freezes_imported_objects_but_no_later_garbage() -> None:
    """Nor objects that exist after Triton is imported, whose bindings report every object that is not freed."""
    subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        pytest.param(("--multirun", "seed=0"), marks=pytest.mark.slow),
        pytest.param(("compile=default", "compile.backend=aot_eager"), marks=pytest.mark.slow),
        pytest.param(("compile=default",), marks=pytest.mark.slow),
        pytest.param(("parallel.num_processes=2",), marks=pytest.mark.slow),
    ],
)
def test_no_library_reports_leaks_at_exit(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_command(*words, "duration=1", "tracker=local", "model.hidden=[8]", cwd=tmp_path)
    assert (done.returncode, "leak" in done.stderr) == (0, False)
