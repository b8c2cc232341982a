"""Out of memory: the keys to lower are named; `micro_batch_size: auto` finds what fits. With a model that says so.

And memory on the host that an update frees: the next one has it without the kernel.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from checks import assert_same_state, rows, summary, weights, whole_and_resumed

from hydrant import cli
from hydrant.memory import is_out_of_memory

Train = Callable[..., Path]

GREEDY = '''
import torch
from torch import nn

TRIED = []

class Greedy(nn.Module):
    """Takes so many samples at once, in training and in evaluation; has statistics and dropout."""
    def __init__(self, *, input_shape, num_classes, train_limit, eval_limit=1000, states=0):
        super().__init__()
        self.limits = {True: train_limit, False: eval_limit}
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.1),
                                    nn.Linear(8, num_classes))

    def forward(self, inputs):
        if not torch.compiler.is_compiling():
            TRIED.append(len(inputs))
        if len(inputs) > self.limits[self.training] and not inputs.is_meta:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB.")
        return self.layers(inputs)
'''
RUN = ("tracker=local", "allow_targets=[greedy]", "model._target_=greedy.Greedy", "~model.hidden", "~model.dropout",
       "global_batch_size=24", "eval_batch_size=32", "duration=2", "log_every=1", "eval_every=2",
       "save_every=1")  # fmt: skip
UPDATES = """
import resource
import torch
from hydrant.allocation import keep_freed_memory

keep_freed_memory()
generator = torch.Generator().manual_seed(0)
for num_updates in range(60):
    if num_updates == 50:  # the pieces have found their places
        before = resource.getrusage(resource.RUSAGE_SELF)
    shift = int(torch.randint(8, (), generator=generator)) if num_updates < 50 else 0
    kept = [torch.ones((size + shift) * 2**18) for size in (1, 40, 3, 17)]  # MiB
    del kept
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_minflt - before.ru_minflt, before.ru_maxrss / 2**10)
"""
SAID = "CUDA out of memory. Tried to allocate 20.00 MiB. Lower "


@pytest.fixture
def greedy(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / "greedy.py").write_text(GREEDY)
    monkeypatch.syspath_prepend(workdir)
    monkeypatch.delitem(__import__("sys").modules, "greedy", raising=False)


def saved(folder: Path) -> object:
    return yaml.safe_load((folder / "config.yaml").read_text())["micro_batch_size"]


@pytest.mark.usefixtures("greedy")
@pytest.mark.parametrize("words", [(), ("compile=default", "compile.backend=eager", "compile.check=false",
                                        "compile.fullgraph=false", "compile.on_failure=fallback")])  # fmt: skip
def test_training_names_the_keys(
    words: tuple[str, ...], train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*RUN, *words, "+model.train_limit=8", status=1)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {SAID}micro_batch_size (micro_batch_size=auto ")
    assert "precision=bf16" in last
    assert summary(folder)["error"]["type"] == "OutOfMemory"
    assert "torch.OutOfMemoryError" in (folder / "train.log").read_text()


@pytest.mark.usefixtures("greedy")
def test_evaluation_names_its_own(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*RUN, "+model.train_limit=24", "+model.eval_limit=16")
    train(*words, status=1)
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {SAID}eval_batch_size"
    folder = train(*words, "eval_batch_size=16", name="other")
    assert cli.main(["evaluate", str(folder), "eval_batch_size=17", "allow_targets=[greedy]"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {SAID}eval_batch_size"


@pytest.mark.usefixtures("greedy")
def test_auto_is_the_largest_divisor_that_fits_and_changes_nothing_else(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the number had been given, also after a stop; the statistics, too, have seen nothing of the trials."""
    words = (*RUN, "+model.train_limit=9", "optimizer=sgd", "averaging=ema")
    auto, resumed = whole_and_resumed(train, monkeypatch, (*words, "micro_batch_size=auto"), stop_at=1)
    given = train(*words, "micro_batch_size=8", name="given")
    for folder in (auto, resumed):
        assert saved(folder) == 8
        assert_same_state(weights(folder), weights(given))
        assert rows(folder) == rows(given)


@pytest.mark.usefixtures("greedy")
def test_a_run_that_goes_on_keeps_its_number(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*RUN, "+model.train_limit=7", "micro_batch_size=auto")
    folder = train(*words)
    import greedy  # type: ignore[import-not-found]

    assert (saved(folder), [n for n in greedy.TRIED if n in (24, 12)]) == (6, [24, 12])
    capsys.readouterr()
    train(*words)
    assert "already finished" in capsys.readouterr().out
    other = train(*words, "resume=outputs/run", name="other")
    assert saved(other) == 6
    assert "micro_batch_size=auto" not in (other / "train.log").read_text()  # nothing was tried


@pytest.mark.slow
@pytest.mark.usefixtures("greedy")
def test_nothing_fits(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*RUN, "+model.train_limit=0", "micro_batch_size=auto", status=1)
    told = "error: micro_batch_size=auto: not even one sample at a time fits (CUDA out of memory. Tried"
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)
    assert not (folder / "config.yaml").exists()


@pytest.mark.usefixtures("greedy")
@pytest.mark.parametrize(
    "words",
    [
        ("mixing=mixup", "global_batch_size=18"),  # 9 is odd
        pytest.param(
            ("compile=default", "compile.backend=eager", "compile.fullgraph=false"), marks=pytest.mark.slow
        ),
        ("precision=fp16", "precision.init_scale=1024.0"),
    ],
)
def test_auto_goes_with(words: tuple[str, ...], train: Train) -> None:
    """With sizes that a part refuses, compiled, and with a loss scaler."""
    assert saved(train(*RUN, "+model.train_limit=9", "micro_batch_size=auto", *words)) in (6, 8)


def test_on_the_host_it_is_the_whole_share(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tracker=local", "model.hidden=[8]", "duration=1", "micro_batch_size=auto")
    assert saved(train(*words)) == 64
    assert cli.main(["preview", *words]) == 0
    assert "64 samples x 1 x 1 rank(s) at most: auto finds what fits" in capsys.readouterr().out


def test_what_an_update_frees_is_there_for_the_next() -> None:
    """Counted by the pages that the kernel has to give; where the environment rules the allocator, it does."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        return  # another C library, whose own way this is left to
    num_faults, most = updates()
    for rule in (
        {"MALLOC_MMAP_THRESHOLD_": "1000000"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1000000"},
    ):
        num_faults_ruled, most_ruled = updates(**rule)
        assert num_faults < num_faults_ruled / 4
        assert most < most_ruled + 2 * (61 + 4 * 8)  # though sizes change, it is never in pieces too small


def updates(**rule: str) -> tuple[int, float]:
    """(Page faults of later updates, MiB that all of them took at most)."""
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))
    }
    command = [sys.executable, "-c", UPDATES]
    done = subprocess.run(command, env=inherited | rule, capture_output=True, text=True, check=True)
    num_faults, most = done.stdout.split()
    return int(num_faults), float(most)


def test_what_is_out_of_memory() -> None:
    wrapped = ValueError("in a backend")
    wrapped.__cause__ = torch.OutOfMemoryError("full")
    full = [MemoryError(), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x"), wrapped]
    assert all(map(is_out_of_memory, full))
    assert not is_out_of_memory(RuntimeError("a shape"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu_it_fits(train: Train) -> None:
    folder = train("experiment=vit_fake", "tracker=local", "duration=2", "global_batch_size=16384",
                   "data.num_samples=16384", "eval_every=null", "save_every=null", "micro_batch_size=auto")  # fmt: skip
    assert 1 <= saved(folder) < 16384  # type: ignore[operator]
