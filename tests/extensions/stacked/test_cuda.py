"""Stacks on CUDA: lanes train as their runs alone, step together as on the CPU, and the host never waits."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

import gpu
import pytest
import torch
from lanes import CASES, SEEDS, TINY, differences, trainers_of
from marks import slow_but
from repository import options_of

from benchmarks.stack_updates import stack_of
from benchmarks.stacked_gpu import peak_of_run, peak_of_stack
from hydrant.extensions.stacked.random import StackedDropouts
from hydrant.extensions.stacked.stack import Stack

COUNTS_IN_PYTHON = "it counts in Python, or makes new tensors for its state"
LANE_BY_LANE = {
    "adafactor": "it branches on a number",
    "ademamix": COUNTS_IN_PYTHON,
    "asgd": "it branches on a number",
    "kron": "differs between the runs",
    "library": COUNTS_IN_PYTHON,
    "mars": f"{COUNTS_IN_PYTHON}|it branches on a number",  # the latter before timm 1.0.31
    "normuon": "it is made of several optimizers",
    "prodigy": "output with shape",
    "radam": "it branches on a number",
    "schedule_free_adamw": "it branches on a number",
    "scion": COUNTS_IN_PYTHON,
    "shampoo": "batching rule for aten::addmm_",
    "soap": "differs between the runs",
    "torch_muon": "it is made of several optimizers",
}
"""Optimizers whose lanes make their steps alone, with a pattern of the reason."""

NOT_STACKED = {"lbfgs", "sam", "sparse_adam"}
"""Optimizers that evaluate the loss, or need sparse gradients."""

KINDS = [
    *(option for option in options_of("optimizer") if option not in NOT_STACKED),
    *(f"{name} optimizer.fused=false" for name in ("adagrad", "adam", "adamw", "sgd")),
]
TOGETHER = [kind for kind in KINDS if kind not in LANE_BY_LANE]

UPDATES = {
    "schedules of several fields": (
        "optimizer=sgd", "scheduler=cosine", "+scheduler@schedules.momentum=linear",
        "+scheduler@schedules.weight_decay=linear",
    ),
    "groups": ("param_groups.no_decay=true", "scheduler=cosine"),
    "ema": ("averaging=ema",),
    "tail": ("averaging=tail", "averaging.start=1"),
    "norm": ("max_grad_norm=0.1",),
    "value": ("max_grad_value=0.1",),
    "agc": ("agc=0.01",),
    "micro-batches": ("micro_batch_size=16",),
    "growing batches": ("global_batch_size={0: 16, 5: 32}", "micro_batch_size=16"),
    "mixup": ("mixing=mixup",),
    "cutmix of samples": ("mixing=cutmix", "mixing.mode=elem"),
    "augmentation": ("data.augment.max_shift=1",),
    "dropout": ("model.dropout=0.3",),
    "ignored targets": ("task.ignore_index=3",),
    "bfloat16": ("precision=bf16", "model.dropout=0.3"),
    "weights in bfloat16": ("precision=bf16_true", "max_grad_norm=0.1"),
}  # fmt: skip
"""What an update may do besides."""


def reason_for_lane_by_lane(kind: str, messages: Callable[[], list[str]]) -> str | None:
    """Train two lanes with an optimizer; return why their steps are made lane by lane, None if they are not."""
    runs = [[*TINY, *f"optimizer={kind} seed={seed}".split()] for seed in range(2)]
    with trainers_of(*runs) as lanes:
        stack = Stack(lanes)
        for _ in range(3):
            stack.update(measure=True)
    reasons = [message for message in messages() if "lane by lane" in message]
    assert len(reasons) < 2
    return reasons[0] if reasons else None


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level("INFO", logger="hydrant")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.cuda
@pytest.mark.parametrize("kind", slow_but(("nadam", "adamw optimizer.fused=false"), KINDS))
def test_lanes_step_together(kind: str, messages: Callable[[], list[str]]) -> None:
    check_reason(kind, messages)


@pytest.mark.parametrize("kind", slow_but(("nadam", "adafactor", "torch_muon"), KINDS))
def test_lanes_step_together_on_the_cpu(kind: str, messages: Callable[[], list[str]]) -> None:
    check_reason(kind, messages)


def check_reason(kind: str, messages: Callable[[], list[str]]) -> None:
    reason = reason_for_lane_by_lane(kind, messages)
    if kind in LANE_BY_LANE:
        assert reason is not None
        assert re.search(LANE_BY_LANE[kind], reason)
    else:
        assert reason is None


@pytest.mark.cuda
@pytest.mark.parametrize("case", slow_but(("batch norm and augmentation",), CASES))
def test_lanes_train_as_alone(case: str) -> None:
    base, lanes = CASES[case]
    found = differences(base, lanes, num_updates=10)
    assert torch.cuda.max_memory_allocated() > 0
    assert max(found.weights, found.loss, found.buffers) < 1e-5, found


@pytest.mark.slow
@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["bf16", "bf16_true"])
def test_lanes_train_in_bfloat16(precision: str) -> None:
    base = (*TINY, f"precision={precision}", "model.dropout=0.1")
    assert differences(base, SEEDS, num_updates=10).loss < 1e-2


@pytest.mark.cuda(level="calls")
@pytest.mark.parametrize("kind", slow_but(("nadam",), TOGETHER))
def test_the_host_does_not_wait_for_steps(kind: str) -> None:
    check_waits(f"optimizer={kind}".split())


@pytest.mark.cuda(level="calls")
@pytest.mark.parametrize("case", slow_but(("schedules of several fields",), UPDATES))
def test_the_host_does_not_wait_for_updates(case: str) -> None:
    check_waits(UPDATES[case])


def check_waits(words: Iterable[str]) -> None:
    """Count the waits and the pageable copies of updates after those that prepare the steps."""
    with trainers_of(*([*TINY, *words, f"seed={seed}"] for seed in range(3))) as lanes:
        stack = Stack(lanes)
        for _ in range(4):
            stack.update(measure=True)
        with gpu.calls() as calls:
            for _ in range(4):
                stack.update(measure=True)
    assert calls.launches > 4 * 10
    assert (calls.waits, calls.pageable_copies) == (0, 0), calls.counts


UPDATE = ("scheduler=cosine", "averaging=ema", "max_grad_norm=1", "model.dropout=0.1")


@dataclass(frozen=True)
class Cost:
    """What updates of a stack take."""

    launches: int
    copies: int
    waits: int
    python: int  # calls of functions

    @classmethod
    def of(cls, num_lanes: int) -> Cost:
        with stack_of([*TINY, *UPDATE], num_lanes) as stack:
            for _ in range(4):  # which prepare the steps
                stack.update(measure=False)
            with gpu.calls() as calls, counted_python() as python:
                for _ in range(NUM_UPDATES):
                    stack.update(measure=False)
        return cls(calls.launches, len(calls.of("copy")), calls.waits, python["calls"])


NUM_UPDATES = 8


@contextlib.contextmanager
def counted_python() -> Generator[Counter[str]]:
    """Count the calls of functions of Python and of C from Python."""
    counts = Counter[str]()

    def count(frame: object, event: str, argument: object) -> None:
        counts["calls"] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(None)


@pytest.fixture
def drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stack draw the dropout of all lanes at once, though at the level of calls nothing computes."""
    monkeypatch.setattr(StackedDropouts, "is_exact", lambda dropouts: True)


@pytest.mark.slow
@pytest.mark.cuda(level="calls")
@pytest.mark.usefixtures("drawn_at_once")
def test_the_cost_of_an_update_does_not_depend_on_the_number_of_lanes() -> None:
    few, many = Cost.of(4), Cost.of(16)
    assert few.launches > 10 * NUM_UPDATES
    assert (many.launches, many.copies, many.waits) == (few.launches, few.copies, 0)
    # The order of the samples of an epoch is drawn lane by lane: one call in two updates.
    assert many.python - few.python <= 12 * NUM_UPDATES


@pytest.mark.slow
@pytest.mark.cuda(level="calls")
@pytest.mark.usefixtures("drawn_at_once")
def test_2048_lanes_launch_little_more() -> None:
    few, many = Cost.of(4), Cost.of(2048)
    # The dropout of so many lanes is drawn for each update, not for several at once.
    assert few.launches < many.launches < 1.5 * few.launches
    assert (many.copies - few.copies, many.waits) <= (NUM_UPDATES, 0)
    assert many.python - few.python <= 1.5 * 2044 * NUM_UPDATES


@pytest.mark.slow
@pytest.mark.cuda(level="calls")
@pytest.mark.usefixtures("drawn_at_once")
def test_a_stack_takes_little_more_memory_than_its_runs_alone() -> None:
    assert peak_of_stack(64) <= 1.1 * 64 * peak_of_run()
