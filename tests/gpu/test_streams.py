"""Each wait of the project is there, and needed: without it, training on streams that are late reads stale memory.

At the stub's level "time", what a stream is given takes effect when the host or another stream waits for it. A second
order lets the side streams be early and the default stream late.
"""

import ast
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import pytest
import torch
from marks import slow
from run_folders import rows
from safetensors.torch import load_file

import hydrant
from hydrant import cli
from hydrant.commands import preview
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training import costs, metrics
from hydrant.training.prepare import micro_batch

bench = pytest.importorskip("hydrant.extensions.bench.command")

SOURCES = Path(hydrant.__file__).parent
METHODS: list[tuple[Any, str]] = [
    (torch.cuda.Stream, "wait_stream"),
    (torch.cuda.Stream, "wait_event"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Event, "synchronize"),
    (torch.Tensor, "record_stream"),
    (torch.cuda, "synchronize"),
]
LATE = pytest.mark.cuda(level="time", order="late")
SIDE_FIRST = pytest.mark.cuda(level="time", order="side_first")

Train = Callable[..., Path]
Site = tuple[str, str, int]
"""A wait of the project: the file, the name of the call, and the line."""
WAITS = Counter({
    ("extensions/bench/command.py", "synchronize"): 2,
    ("commands/preview.py", "synchronize"): 1,
    ("data/in_memory.py", "record_stream"): 1,
    ("data/in_memory.py", "synchronize"): 1,
    ("data/in_memory.py", "wait_stream"): 1,
    ("training/checkpoint/manager.py", "synchronize"): 1,
    ("training/metrics.py", "synchronize"): 1,
    ("training/prepare/micro_batch.py", "synchronize"): 1,
    ("training/costs.py", "synchronize"): 1,
})  # fmt: skip
"""How many waits each file has. A wait that goes is to be missed here, and one that comes needs a look."""


@LATE
def test_a_copy_arrives_when_something_waits_for_it() -> None:
    source, side = torch.ones(4).pin_memory(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        copy = source.to("cuda", non_blocking=True)
    read_early = copy.clone()
    seen = torch.zeros(4).pin_memory()
    seen.copy_(copy, non_blocking=True)
    assert seen.tolist() == [0] * 4
    source.fill_(2)  # before the copy is made
    torch.cuda.current_stream().synchronize()
    assert read_early.tolist() == [0] * 4
    assert not side.query()
    torch.cuda.current_stream().wait_stream(side)
    assert copy.tolist() == [2] * 4
    assert side.query()


@pytest.mark.slow
@SIDE_FIRST
def test_memory_that_another_stream_still_reads_is_overwritten() -> None:
    def sum_on_default_stream(*, is_recorded: bool) -> float:
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        with torch.cuda.stream(side):
            first = torch.ones(1000, device="cuda")
        main.wait_stream(side)
        total = first.sum()
        if is_recorded:
            first.record_stream(main)
        del first
        with torch.cuda.stream(side):
            second = torch.full((1000,), 5.0, device="cuda")
        return float(total) + 0 * len(second)

    assert sum_on_default_stream(is_recorded=True) == 1000
    assert sum_on_default_stream(is_recorded=False) == 5000


@LATE
def test_a_kernel_reads_the_numbers_of_the_host_at_its_launch() -> None:
    factor = torch.tensor(2.0)
    product = torch.ones(3, device="cuda") * factor
    factor.fill_(7)
    assert product.tolist() == [2, 2, 2]


@LATE
def test_a_kernel_that_fails_is_reported() -> None:
    torch.zeros(3, device="cuda").index_select(0, torch.tensor([5], device="cuda"))
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="work that was given to a stream has failed"):
        torch.ones(3, device="cuda") + 1
    from gpu import runtime

    runtime._failures.clear()


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("samples"), np.random.default_rng(0)
    for split, count in (("train", 256), ("val", 64)):
        (folder / split).mkdir()
        inputs = rng.standard_normal((count, 16)).astype(np.float32)
        np.save(folder / split / "inputs.npy", inputs)
        np.save(folder / split / "targets.npy", (inputs[:, 0] > 0).astype(np.int64))
    return folder


class Waits:
    """The waits of the project while a test trains, of which it can leave one out."""

    def __init__(self) -> None:
        self.met: set[Site] = set()
        self.left_out: Site | None = None

    def watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that a test puts in place of one of torch."""

        def call(*args: Any, **kwargs: Any) -> Any:
            site = self._site(name)
            if site is not None:
                self.met.add(site)
            return None if site is not None and site == self.left_out else method(*args, **kwargs)

        return call

    def _site(self, name: str) -> Site | None:
        frame = sys._getframe(2)
        if frame.f_code is costs.synchronize.__code__:  # what calls this is the wait
            frame = frame.f_back
        path = Path(frame.f_code.co_filename)
        is_own = path.is_relative_to(SOURCES)
        return (str(path.relative_to(SOURCES)), name, frame.f_lineno) if is_own else None


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    made = Waits()
    for owner, name in METHODS:
        monkeypatch.setattr(owner, name, made.watched(name, getattr(owner, name)))
    return made


@pytest.fixture
def words(samples: Path) -> list[str]:
    """Overrides of a run that copies each batch to the GPU."""
    data = [f"data.{split}={samples / split}" for split in ("train", "val")]
    sizes = ["data.input_shape=[16]", "data.num_classes=2", "data.num_workers=0", "global_batch_size=16"]
    return ["data=memmap", *data, *sizes, "model.hidden=[32]", "model.dropout=0", "tracker=local"]


@pytest.fixture
def see(train: Train, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """`see()`: train, and measure times; return all that a missing wait can change."""
    words = [*words, "duration=40", "save_every=13", "save_async=false", "log_every=40", "eval_every=20"]
    names = (f"run{number}" for number in itertools.count())
    clock = Clock()

    def call() -> dict[str, Any]:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        clock.readings.clear()
        with monkeypatch.context() as patches:
            for module in (costs, bench, metrics, micro_batch, preview):
                patches.setattr(module, "time", clock)
            folder = train(*words, name=next(names))
            active = torch.cuda.memory_stats()["active_bytes.all.peak"]
            train(*words, "duration=2s", name=next(names))
            assert cli.main(["preview", *words]) == 0
            patches.setattr(bench, "matmul_rate", lambda *_: 0)
            measured = bench._measure_cell(check(compose(words)), 2, 1)
            patches.setattr(torch, "mm", torch.add)  # which is faster
            costs.matmul_rate(torch.device("cuda"), torch.float32)
        assert measured.error is None
        return {
            "rows": rows(folder),
            "checkpoints": checkpoints(folder),
            "memory of batches that wait": active,
            "idle at the readings of the clock": list(clock.readings),
        }

    return call


def checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Return the weights in each file of the checkpoints of a run."""
    paths = sorted(folder.glob("checkpoints/update_*/*.safetensors"))
    return [{name: value.tolist() for name, value in load_file(path).items()} for path in paths]


class Clock:
    """Stands in for the module `time` where the work of a GPU is timed: a second passes between two readings."""

    def __init__(self) -> None:
        self.readings: list[tuple[str, bool]] = []

    def perf_counter(self) -> float:
        """Return the time, and note which function reads it and whether the GPU has no work."""
        self.readings.append((sys._getframe(1).f_code.co_name, torch.cuda.current_stream().query()))
        return float(len(self.readings))

    process_time = time.process_time


def written() -> set[Site]:
    """Return each wait in the sources of Hydrant, but not the one that others call: `costs.synchronize`."""
    names, found = {name for _, name in METHODS}, set[Site]()
    for path in SOURCES.rglob("*.py"):
        source = path.read_text()
        if not any(name in source for name in names):
            continue
        tree = ast.parse(source)
        skipped = {
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and function.name == "synchronize"
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            is_method = isinstance(node, ast.Attribute) and node.attr in names
            is_call = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "synchronize"
            )
            if (is_method or is_call) and node not in skipped:
                name = node.attr if isinstance(node, ast.Attribute) else "synchronize"
                found.add((str(path.relative_to(SOURCES)), name, node.lineno))
    return found


def test_each_wait_is_there() -> None:
    assert Counter(site[:2] for site in written()) == WAITS


@pytest.mark.slow
@LATE
def test_each_wait_is_needed(see: Callable[[], dict[str, Any]], waits: Waits) -> None:
    expected = see()
    assert expected == see()
    # A method that is read in one line and called in another counts as one wait.
    assert Counter(site[:2] for site in waits.met) == WAITS
    unneeded = set[Site]()
    for site in sorted(waits.met):
        waits.left_out = site
        if see() == expected:
            unneeded.add(site)
    assert not unneeded


@pytest.mark.parametrize(
    "order", [*slow(pytest.param("late", marks=LATE)), pytest.param("side", marks=SIDE_FIRST)]
)
def test_late_streams_train_as_the_cpu(order: str, train: Train, on_cpu: Train, words: list[str]) -> None:
    """Batches are copied before they are used, and kept until they were; checkpoints hold what their update made."""
    words = [*words, "duration=20", "log_every=5", "eval_every=10", "save_every=5", "keep_last=4"]
    with gpu.calls() as calls:
        on_gpu = train(*words, name=order)
    expected = on_cpu(*words, name="cpu")
    of_batches, of_weights = (calls.of("copy", t) for t in (f"async {16 * 16 * 4}", f"async {32 * 16 * 4}"))
    assert {call.detail.split(" async")[0] for call in of_batches} == {"H2D pinned"}
    assert {call.detail for call in of_weights if "D2H" in call.detail} == {"D2H pinned async 2048"}
    assert (len(of_batches), calls.counts["stream wait"]) == (20, 20 + 3)  # and one of each evaluation
    assert rows(on_gpu) == rows(expected)
    saved = checkpoints(expected)
    assert len(saved) == 8  # weights, and the state of training
    assert checkpoints(on_gpu) == saved
