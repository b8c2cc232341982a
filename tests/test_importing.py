"""Importing without the garbage collector: what comes in is not looked at again, garbage made later is collected."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from checks import run_command

import hydrant
from hydrant.importing import importing
from hydrant.isolation import ProcessDied, call_isolated


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


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--multirun", "seed=0"),
        ("compile=default", "compile.backend=aot_eager"),
        pytest.param(("compile=default",), marks=pytest.mark.slow),
        pytest.param(("parallel.num_processes=2",), marks=pytest.mark.slow),
    ],
)
def test_no_library_tells_of_leaks_at_the_end(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_command(*words, "duration=1", "tracker=local", "model.hidden=[8]", cwd=tmp_path)
    assert (done.returncode, "leak" in done.stderr) == (0, False)


@pytest.mark.parametrize("module", ["hydrant.server.begin", "hydrant.server.end", "hydrant.executors.warm"])
def test_the_servers_modules_do_nothing_elsewhere(module: str, tmp_path: Path) -> None:
    """As where a config names one: it is imported, and refused."""
    code = (
        f"import gc, sys, {module}; print(gc.isenabled(), gc.get_freeze_count(), 'matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit(3)"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "True 0 False\n")
    done = run_command(f"model._target_={module}.is_here", cwd=tmp_path)
    assert (done.returncode, "not allowed" in done.stderr) == (2, True)


@pytest.mark.parametrize(("function", "status"), [(os._exit, 5), (sys.exit, 6)])
def test_a_process_of_its_own_ends_by_its_own_status(function: Callable[[int], Any], status: int) -> None:
    died = call_isolated(function, (status,), ["torch"]).result
    assert isinstance(died, ProcessDied)
    assert died.exit_code == status


def test_what_parts_declare_to_be_slow_can_be_imported() -> None:
    """Else the server would pass over it, and each job import it."""
    declared = set[str]()
    for found in pkgutil.walk_packages(hydrant.__path__, "hydrant."):
        if "PRELOAD" in (find_spec(found.name).loader.get_source(found.name) or ""):  # type: ignore[union-attr]
            names = getattr(importlib.import_module(found.name), "PRELOAD", ())
            assert isinstance(names, tuple)
            declared.update(names)
    assert "timm" in declared
    assert [name for name in sorted(declared) if find_spec(name) is None] == []


def test_a_process_of_its_own_finds_its_imports_frozen() -> None:
    for function, is_so in ((gc.get_freeze_count, lambda count: count > 100_000), (gc.isenabled, bool)):
        assert is_so(call_isolated(function, (), ["torch"]).result)


def test_no_job_of_a_sweep_imports_what_the_one_before_did(tmp_path: Path) -> None:
    """The command and the server of its jobs have it: of ours, and what draws schedule.png."""
    words = ("--multirun", "seed=0,1,2,3,4", "duration=1", "tracker=local", "model.hidden=[8]")
    done = run_command(*words, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    told = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    count = Counter(line.rpartition("|")[2].strip() for line in told)
    ours = {name: num for name, num in count.items() if name.startswith(("hydrant", "matplotlib", "PIL"))}
    assert {"hydrant.run", "hydrant.models.mlp", "PIL.Image"} < ours.keys()
    assert [name for name, num in ours.items() if num >= 5] == []
