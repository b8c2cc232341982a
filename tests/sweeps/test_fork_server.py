"""The fork server: it has all imports done and frozen, so that its processes start fast and share its memory."""

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
from processes import printed
from training_runs import run_command

import hydrant
from hydrant.safety.targets import preload_paths
from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated


@pytest.mark.parametrize(("function", "status"), [(os._exit, 5), (sys.exit, 6)])
def test_a_called_function_can_end_its_process(function: Callable[[int], Any], status: int) -> None:
    died = call_isolated(function, (status,), ["torch"]).result
    assert isinstance(died, ProcessDied)
    assert died.exit_code == status


def test_a_forked_process_has_frozen_imports_and_an_enabled_collector() -> None:
    """Of a server of its own: other tests have one that is a fork of this process."""
    code = "import gc; from hydrant.sweeps.fork_server.call import call_isolated\n"
    code += "print(*(call_isolated(f, (), ['torch']).result for f in (gc.get_freeze_count, gc.isenabled)))"
    num_frozen, is_enabled = printed(sys.executable, "-c", code).split()
    assert int(num_frozen) > 100_000
    assert is_enabled == "True"


@pytest.mark.slow
def test_the_patches_do_nothing_in_other_processes(tmp_path: Path) -> None:
    """Such as one whose config names the module: it imports the module, and refuses the config."""
    module = "hydrant.sweeps.fork_server"
    code = (
        f"import gc, sys, {module}; print(gc.isenabled(), gc.get_freeze_count(), 'matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit(3)"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "True 0 False\n")
    done = run_command(f"model._target_={module}.is_fork_server", cwd=tmp_path)
    assert (done.returncode, "not allowed" in done.stderr) == (2, True)


def test_every_module_in_a_preload_list_can_be_imported() -> None:
    """The server skips a module that it cannot import, and then each job imports it."""
    preloaded = set[str]()
    for module in pkgutil.walk_packages(hydrant.__path__, "hydrant."):
        if "PRELOAD" in (find_spec(module.name).loader.get_source(module.name) or ""):  # type: ignore[union-attr]
            imported = importlib.import_module(module.name)
            for target, names in getattr(imported, "PRELOAD", {}).items():
                assert getattr(imported, target).__module__ == module.name
                assert isinstance(names, tuple)
                preloaded.update(names)
    assert "timm" in preloaded
    missing = [] if sys.version_info < (3, 15) else ["datasets"]  # no wheel of its pyarrow
    assert [name for name in sorted(preloaded) if find_spec(name) is None] == missing


@pytest.mark.slow
def test_the_server_imports_what_a_part_lists() -> None:
    """The command does not import a part before it starts the server. What does not exist is left to the job."""
    calls = "preload('hydrant.no_part'); preload('hydrant.optimizers.NoPart'); preload('hydrant.models.timm_model')"
    imported = "print(*({'timm', 'hydrant.models'} & sys.modules.keys()))"
    code = f"import sys; from hydrant.safety.targets import preload; {calls}; {imported}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"timm", "hydrant.models"}


def test_the_server_imports_only_parts_of_hydrant_and_what_every_run_needs() -> None:
    """A config that is not checked yet cannot make it import anything else."""
    parts = ["hydrant.models.MLP", "torch.nn.Linear", "my_package.part", "${oc.env:X}", 3, None]
    config = {f"part{n}": {"_target_": path} for n, path in enumerate(parts)}
    assert preload_paths([config]) == ["hydrant.models.MLP", "torch._dynamo", "torch.utils.flop_counter"]


@pytest.mark.slow
def test_jobs_import_neither_hydrant_nor_matplotlib_again(tmp_path: Path) -> None:
    """Only the command and the fork server import Hydrant's modules and what its listeners need."""
    words = ("--multirun", "seed=0,1,2,3,4", "duration=1", "tracker=local", "model.hidden=[8]")
    done = run_command(*words, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    imports = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    counts = Counter(line.rpartition("|")[2].strip() for line in imports)
    watched = {name: n for name, n in counts.items() if name.startswith(("hydrant", "matplotlib", "PIL"))}
    assert {"hydrant.runs.reporter", "hydrant.models"} < watched.keys()
    assert [name for name, n in watched.items() if n >= 5] == []


@pytest.mark.parametrize("is_initialized", [pytest.param(False, marks=pytest.mark.slow), True])
def test_imports_in_the_server_do_not_initialize_cuda(is_initialized: bool, tmp_path: Path) -> None:
    """The server lets torch ask NVML for GPUs. The flag that torch sets if CUDA is initialized
    is set by hand, of a module in its place."""
    preloaded = ["import os", "asks_nvml = os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK')"]
    if is_initialized:
        cuda = "SimpleNamespace(_is_in_bad_fork=lambda: True)"
        preloaded += [
            "import sys; from types import SimpleNamespace",
            f"sys.modules['torch'] = SimpleNamespace(cuda={cuda})",
        ]
    else:
        preloaded.append("import torch")
    (tmp_path / "at_import.py").write_text("\n".join([*preloaded, "def answer():", "    return asks_nvml"]))
    program = (
        "import at_import; from hydrant.sweeps.fork_server.call import call_isolated\n"
        "if __name__ == '__main__': print(call_isolated(at_import.answer, (), ['at_import']).result)"
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    if is_initialized:
        assert "error: a package that the config names uses the GPU while it is imported" in done.stderr
        assert done.stdout == "the process ended without a result: exit status 1\n"
    else:
        assert done.stdout == "1\n"
