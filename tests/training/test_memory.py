"""Out of memory names the keys to lower. Memory that an update frees on the host serves the next update."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch
from limited_memory import LIMITED_RUN
from marks import of_extension, slow
from run_folders import summary
from training_runs import Train

from hydrant import cli
from hydrant.training.costs import is_out_of_memory

MESSAGE = "CUDA out of memory. Tried to allocate 20.00 MiB. Lower "
COMPILED = ("compile=default", "compile.backend=eager", "compile.check=false", "compile.fullgraph=false",
            "compile.on_failure=fallback")  # fmt: skip
UPDATES = """
import resource
import torch
from hydrant.training.costs import keep_freed_memory

keep_freed_memory()
generator = torch.Generator().manual_seed(0)
for num_updates in range(60):
    if num_updates == 50:  # the allocations have found their places
        before = resource.getrusage(resource.RUSAGE_SELF)
    shift = int(torch.randint(8, (), generator=generator)) if num_updates < 50 else 0
    kept = [torch.ones((size + shift) * 2**18) for size in (1, 40, 3, 17)]  # MiB
    del kept
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_minflt - before.ru_minflt, before.ru_maxrss / 2**10)
"""


@pytest.mark.usefixtures("limited_model")
@pytest.mark.parametrize("words", [(), *of_extension(*slow((COMPILED,)))])
def test_out_of_memory_in_training_names_the_keys(
    words: tuple[str, ...], train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*LIMITED_RUN, *words, "+model.train_limit=8", status=1)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {MESSAGE}micro_batch_size (micro_batch_size=auto ")
    assert "precision=bf16" in last
    assert summary(folder)["error"]["type"] == "OutOfMemory"
    assert "torch.OutOfMemoryError" in (folder / "train.log").read_text()


@pytest.mark.usefixtures("limited_model")
def test_out_of_memory_in_evaluation_names_its_key(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*LIMITED_RUN, "+model.train_limit=24", "+model.eval_limit=16")
    train(*words, status=1)
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {MESSAGE}eval_batch_size"
    folder = train(*words, "eval_batch_size=16", name="other")
    assert cli.main(["evaluate", str(folder), "eval_batch_size=17", "allow_targets=[limited]"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {MESSAGE}eval_batch_size"


def test_which_errors_mean_out_of_memory() -> None:
    wrapped = ValueError("in a backend")
    wrapped.__cause__ = torch.OutOfMemoryError("full")
    codes = ("CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_ALLOC_FAILED")
    full = [MemoryError(), *(RuntimeError(f"CUDA error: {code} when calling x") for code in codes), wrapped]
    assert all(map(is_out_of_memory, full))
    assert not is_out_of_memory(RuntimeError("a shape"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.slow
def test_memory_that_an_update_frees_serves_the_next() -> None:
    """Count page faults. If the environment configures the allocator, that configuration holds."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        return  # not the GNU C library
    num_faults, peak_mib = updates()
    for variables in (
        {"MALLOC_MMAP_THRESHOLD_": "1000000"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1000000"},
    ):
        num_faults_configured, peak_mib_configured = updates(**variables)
        assert num_faults < num_faults_configured / 4
        assert peak_mib < peak_mib_configured + 2 * (61 + 4 * 8)  # changing sizes do not fragment the heap


def updates(**variables: str) -> tuple[int, float]:
    """Return (page faults of the later updates, peak memory of all updates in MiB)."""
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))
    }
    command = [sys.executable, "-c", UPDATES]
    process = subprocess.run(command, env=inherited | variables, capture_output=True, text=True, check=True)
    num_faults, peak_mib = process.stdout.split()
    return int(num_faults), float(peak_mib)
