"""Importing without the garbage collector: what comes in is not looked at again, garbage made later is collected."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from checks import run_command

from hydrant.importing import importing
from hydrant.isolation import call_isolated


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_as_before(before: bool) -> None:
    """Within one another, and where an import fails."""
    (gc.enable if before else gc.disable)()
    try:
        with importing():
            with importing():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == before
        with pytest.raises(ModuleNotFoundError), importing():
            importlib.import_module("no_such_module")
        assert gc.isenabled() == before
    finally:
        gc.enable()


IN_A_FRESH_PROCESS = """
import gc, sys, weakref
from hydrant.importing import importing

with importing():
    pass
assert gc.get_freeze_count() == 0, "nothing came in"
with importing():
    import decimal
assert not any(found is decimal.Decimal for found in gc.get_objects())
assert gc.get_freeze_count() > 100

class Node: ...

node = Node()
node.itself, end = node, weakref.ref(node)
del node
gc.collect()
assert end() is None

count, sys.modules["triton"] = gc.get_freeze_count(), sys
with importing():
    import fractions
assert gc.get_freeze_count() == count
"""


def test_what_came_in_is_frozen_and_later_garbage_is_not() -> None:
    """Nor is what Triton, which tells of what is left, may have made."""
    subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS], check=True)


@pytest.mark.parametrize("words", [(), ("--multirun", "seed=0")])
def test_a_process_ends_without_a_word(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_command(*words, "duration=1", "tracker=local", "model.hidden=[8]", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_of_its_own_finds_its_imports_frozen() -> None:
    for function, is_so in ((gc.get_freeze_count, lambda count: count > 100_000), (gc.isenabled, bool)):
        assert is_so(call_isolated(function, (), ["torch"]).result)
