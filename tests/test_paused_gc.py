"""Imports without the garbage collector, and the end of a process."""

import gc
import importlib
from pathlib import Path

import pytest
from marks import of_extension
from training_runs import run_command

from hydrant.imports import paused_gc


@pytest.mark.parametrize("was_enabled", [True, False])
def test_restores_the_collector(was_enabled: bool) -> None:
    """Also in nested imports, and after one that fails."""
    (gc.enable if was_enabled else gc.disable)()
    try:
        with paused_gc():
            with paused_gc():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
        with pytest.raises(ModuleNotFoundError), paused_gc():
            importlib.import_module("no_such_module")
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--multirun", "seed=0"),
        ("parallel.num_processes=2",),
        *of_extension((("compile=default", "compile.backend=aot_eager"),), (("compile=default",),)),
    ],
)
def test_no_library_reports_leaks_at_exit(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_command(*words, "duration=1", "tracker=local", "model.hidden=[8]", cwd=tmp_path)
    assert (done.returncode, "leak" in done.stderr) == (0, False)
