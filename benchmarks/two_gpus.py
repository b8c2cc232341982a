"""Two ranks on two GPUs: does the exchange of gradients overlap the backward pass, what do sharded weights cost on
the host, and does a rank that fails end the run.

Each run trains a ViT-B/16 in bf16 with 256 images a rank, and profiles ten updates. The hidden share is that part of
the time of the communication kernels on a GPU in which it also computes. Without two GPUs, two ranks on the CPU train
a tiny network.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.commands import run, train
from benchmarks.figures import Figure, Item, Profile
from benchmarks.report import Cell
from benchmarks.turns import ROOT, tables
from hydrant.models import MLP

Span = tuple[float, float]
"""Start and end in microseconds."""

RANKS = ("parallel.num_processes=2",)
VIT = (
    "experiment=vit_fake",
    "global_batch_size=512",
    "precision=bf16",
    "optimizer=adamw",
    "optimizer.fused=null",
)
TINY = ("experiment=vit_tiny_fake", "global_batch_size=4", "+model.kwargs.depth=2", "optimizer=adamw")
WINDOW = (
    "duration=40",
    "profiler=torch",
    "profiler.wait=25",
    "profiler.memory_snapshot=false",
    "log_every=10",
)
COMMUNICATION = re.compile("nccl|gloo|c10d|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE)
LIMIT_SECONDS = 60
GOALS = {"a rank that fails ends the run after": f"<= {LIMIT_SECONDS}"}


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for each way of splitting and compiling, and one for a rank that fails."""
    modes = [("ddp", "eager"), ("ddp", "default"), ("ddp", "blocks"), ("fsdp", "blocks")]
    profiled = {f"{p}, compile={c}": partial(profile, p, c, quick) for p, c in modes[:: 3 if quick else 1]}
    return {**profiled, "a rank that fails": fail}


def profile(parallel: str, compile_: str, quick: bool) -> Iterator[Item]:
    """Measure a run's update, its hidden communication, and the host's time in the optimizer step."""
    backend = ("compile.backend=aot_eager",) if quick and compile_ != "eager" else ()
    words = (
        *(TINY if quick else VIT),
        *RANKS,
        *WINDOW,
        f"parallel={parallel}",
        f"compile={compile_}",
        *backend,
    )
    title = f"{parallel}, compile={compile_}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        train(words, path)
        summary = json.loads((path / "summary.json").read_text())
        yield Figure(
            f"{title}: updates", summary["perf"]["updates_per_second"], "/s", note="with the profiler's cost"
        )
        (trace,) = path.glob("profile/*.pt.trace.json")
        yield Figure(f"{title}: hidden share of the communication", hidden_share(trace), "")
        (phases,) = path.glob("profile/*.phases.txt")
        yield Figure(
            f"{title}: optimizer step on the host", milliseconds(phases.read_text(), "optimizer"), "ms"
        )
        yield Profile(title, tables(path))


def milliseconds(phases: str, name: str) -> float:
    """Return a phase's milliseconds per update from the table of phases.

    >>> milliseconds("   ms  ms/update  share  calls  phase\\n6.794      0.679  30.1%     10  optimizer", "optimizer")
    0.679
    """
    (row,) = [line.split() for line in phases.splitlines() if line.endswith(f" {name}")]
    return float(row[1])


def hidden_share(trace: Path) -> float:
    """Return the share of the communication's time in a trace during which there is also a computation."""
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if "dur" in event]
    kinds = {event.get("cat") for event in events}
    on_device = [
        event for event in events if event.get("cat") == ("kernel" if "kernel" in kinds else "cpu_op")
    ]
    computing = merged(span(event) for event in on_device if not COMMUNICATION.search(event["name"]))
    exchanging = merged(span(event) for event in on_device if COMMUNICATION.search(event["name"]))
    total = sum(end - start for start, end in exchanging)
    if not total:
        raise RuntimeError("there is no communication in the trace")
    return overlap(exchanging, computing) / total


def span(event: dict[str, Any]) -> Span:
    return event["ts"], event["ts"] + event["dur"]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return disjoint spans that cover the same time.

    >>> merged([(4, 5), (0, 2), (1, 3)])
    [(0, 3), (4, 5)]
    """
    result = list[Span]()
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def overlap(one: Iterable[Span], other: list[Span]) -> float:
    """Return how long both are, from disjoint spans.

    >>> overlap([(0, 3), (4, 6)], [(2, 5)])
    2
    """
    return sum(max(min(a[1], b[1]) - max(a[0], b[0]), 0) for a in one for b in other)


def fail() -> Iterator[Figure]:
    """Measure the seconds until a run ends after one of its ranks fails while the other waits for it."""
    words = (
        "model._target_=benchmarks.two_gpus.FailsOnRankOne", "allow_targets=[benchmarks]", "duration=1000",
        "tracker=local", "eval_every=null", "save_every=null",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "failed")
        done = run(str(ROOT / "train.py"), *RANKS, *words, cwd=Path(folder), FAILED=str(file))
        ended = time.time()
        if done.returncode != 1 or not file.exists():
            raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-1200:]}")
        failed = float(file.read_text())
    what = "a rank that fails ends the run after"
    yield Figure(what, ended - failed, "s", GOALS[what], done.stderr.strip().splitlines()[-1])


class FailsOnRankOne(MLP):
    """The digits' network. On rank 1 it fails in its 20th forward pass and notes when; the config's `_target_`."""

    count = itertools.count(1)

    def forward(self, inputs: Tensor) -> Tensor:
        if os.environ.get("RANK") == "1" and next(self.count) == 20:
            Path(os.environ["FAILED"]).write_text(str(time.time()))
            raise RuntimeError("planted")
        return super().forward(inputs)
