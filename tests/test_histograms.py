"""Histograms of weights and gradients are the right ones, whole on any number of ranks, and cost no waiting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_on_ranks
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hydrant import histograms as module
from hydrant.histograms import NUM_BINS, histograms
from hydrant.trackers.base import Histogram

from .support.checks import interrupt_at, summary, weights

SHORT = ("duration=6", "log_every=2", "eval_every=6", "save_every=2", "histogram_every=2", "tracker=local")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "histograms.jsonl").read_text().splitlines()]


def of(values: torch.Tensor) -> Histogram:
    model = nn.Module()
    model.register_parameter("p", nn.Parameter(values))
    return histograms(model)["weights/p"]


def test_they_are_numpys() -> None:
    values = torch.randint(-64, 65, (50, 40), generator=torch.Generator().manual_seed(0)) / 8
    counts, edges = np.histogram(values.numpy(), bins=NUM_BINS)
    found = of(values)
    assert list(found.counts) == counts.tolist()
    assert found.edges == pytest.approx(edges.tolist())
    assert found.total == pytest.approx(float(values.double().sum()))
    assert found.squares == pytest.approx(float(values.double().square().sum()))


@pytest.mark.parametrize(
    ("values", "bounds", "num_counted"),
    [
        ([2.0, 2.0, 2.0], (1.5, 2.5), 3),
        ([float("nan"), 1.0, 3.0, float("inf"), -float("inf")], (1.0, 3.0), 2),
        ([float("nan")], (-0.5, 0.5), 0),
        ([], (-0.5, 0.5), 0),
    ],
)
def test_what_is_equal_not_finite_or_nothing(
    values: list[float], bounds: tuple[float, float], num_counted: int
) -> None:
    found = of(torch.tensor(values))
    assert (found.low, found.high, sum(found.counts)) == (*bounds, num_counted)


def test_a_parameter_without_a_gradient_and_a_sparse_one() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(9, 2, sparse=True), "frozen": nn.Linear(2, 1)})
    model["frozen"].requires_grad_(False)
    model["table"](torch.tensor([1, 1, 4])).sum().backward()
    found = histograms(model)
    assert found.keys() == {"weights/table.weight", "gradients/table.weight", "weights/frozen.weight",
                            "weights/frozen.bias"}  # fmt: skip
    assert sum(found["gradients/table.weight"].counts) == 4  # what it holds


def test_nothing_waits_for_the_device_before_the_one_transfer() -> None:
    """Where a value decided what is done next, a tensor without values could not be worked with."""
    with FakeTensorMode():
        values = torch.empty(1000)
        bounds = module._bounds(torch.stack([module._extremes(values)]))
        assert module._counted(values, bounds[0]).shape == (NUM_BINS + 2,)


def test_a_run_keeps_them_and_goes_on_with_them(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SHORT, "model.hidden=[8]")
    whole = train(*words, name="whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        train(*words, name="half", status=130)
    with (whole.parent / "half" / "histograms.jsonl").open("a") as file:
        file.write(
            '{"num_updates": 6, "histograms": {}}\n{"num_up'
        )  # of updates that are made again, and torn
    half = train(*words, name="half")
    assert [line["num_updates"] for line in lines(whole)] == [2, 4, 6]
    assert lines(half) == lines(whole)
    last, final = lines(whole)[-1]["histograms"], weights(whole)
    for name, tensor in final.items():
        found = last[f"weights/{name}"]
        assert sum(found["counts"]) == tensor.numel()
        assert (found["low"], found["high"]) == pytest.approx((float(tensor.min()), float(tensor.max())))
        assert f"gradients/{name}" in last


def test_tensorboard_shows_them(train: Callable[..., Path]) -> None:
    folder = train(*SHORT[:-1], "tracker=tensorboard", "model.hidden=[8]")
    shown = EventAccumulator(str(folder / "tensorboard"), {"histograms": 0}).Reload()
    events = shown.Histograms("weights/classifier.bias")
    assert [event.step for event in events] == [2, 4, 6]
    assert events[-1].histogram_value.num == 10


@pytest.mark.slow
def test_they_compile_nothing_and_break_no_graph(train: Callable[..., Path]) -> None:
    words = (
        *SHORT,
        "compile=aot_eager",
        "compile.optimizer=true",
        "micro_batch_size=32",
        "max_grad_norm=0.5",
    )
    found = [summary(train(*words, *own, name=n))["compile"]
             for n, own in {"with": (), "without": ("histogram_every=null",)}.items()]  # fmt: skip
    assert (found[0]["recompiles"], found[0]["graph_breaks"]) == (0, 0)
    assert found[0]["graphs"] == found[1]["graphs"]


@pytest.mark.slow
def test_ranks_have_the_ones_of_one_rank(train: Callable[..., Path], workdir: Path) -> None:
    words = (
        *SHORT,
        "optimizer=sgd",
        "model.hidden=[13,13]",
        "model.dropout=0",
    )  # AdamW makes updates of rounding
    one = train(*words, name="one")
    run_on_ranks(2, workdir, [
        ("train", "name=ddp", *words, "micro_batch_size=16"),
        ("train", "name=fsdp", *words, "parallel=fsdp"),
        ("train", "name=replicated", *words, "parallel=hsdp", "parallel.replicate=2"),
    ])  # fmt: skip
    for name in ("ddp", "fsdp", "replicated"):
        for ours, theirs in zip(lines(one), lines(workdir / "outputs" / name), strict=True):
            assert ours["histograms"].keys() == theirs["histograms"].keys()
            for key, histogram in ours["histograms"].items():
                found = theirs["histograms"][key]
                assert sum(found["counts"]) == sum(histogram["counts"]), (name, key)
                for end in ("low", "high"):
                    assert found[end] == pytest.approx(histogram[end], rel=1e-3, abs=1e-5), (name, key)
                apart = np.abs(np.cumsum(found["counts"]) - np.cumsum(histogram["counts"]))
                assert apart.max() <= 2, (name, key)  # rounding moves a value over an edge
