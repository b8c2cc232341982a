"""Histograms of weights and gradients are correct on any number of ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_on_ranks
from run_folders import summary, weights
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from training_runs import Train, interrupt_at

from hydrant.trackers import Histogram
from hydrant.training.reports import NUM_BINS, histograms

SHORT = ("duration=6", "log_every=2", "eval_every=6", "save_every=2", "histogram_every=2", "tracker=local")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "histograms.jsonl").read_text().splitlines()]


def histogram_of(values: torch.Tensor) -> Histogram:
    model = nn.Module()
    model.register_parameter("p", nn.Parameter(values))
    return histograms(model)["weights/p"]


def test_they_equal_numpy_s() -> None:
    values = torch.randint(-64, 65, (50, 40), generator=torch.Generator().manual_seed(0)) / 8
    counts, edges = np.histogram(values.numpy(), bins=NUM_BINS)
    histogram = histogram_of(values)
    assert list(histogram.counts) == counts.tolist()
    assert histogram.edges == pytest.approx(edges.tolist())
    assert histogram.total == pytest.approx(float(values.double().sum()))
    assert histogram.squares == pytest.approx(float(values.double().square().sum()))


@pytest.mark.parametrize(
    ("values", "bounds", "num_counted"),
    [
        ([2.0, 2.0, 2.0], (1.5, 2.5), 3),
        ([float("nan"), 1.0, 3.0, float("inf"), -float("inf")], (1.0, 3.0), 2),
        ([float("nan")], (-0.5, 0.5), 0),
        ([], (-0.5, 0.5), 0),
    ],
)
def test_values_that_are_equal_not_finite_or_missing(
    values: list[float], bounds: tuple[float, float], num_counted: int
) -> None:
    histogram = histogram_of(torch.tensor(values))
    assert (histogram.low, histogram.high, sum(histogram.counts)) == (*bounds, num_counted)


def test_a_parameter_without_a_gradient_and_a_sparse_gradient() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(9, 2, sparse=True), "frozen": nn.Linear(2, 1)})
    model["frozen"].requires_grad_(False)
    model["table"](torch.tensor([1, 1, 4])).sum().backward()
    result = histograms(model)
    assert result.keys() == {"weights/table.weight", "gradients/table.weight", "weights/frozen.weight",
                            "weights/frozen.bias"}  # fmt: skip
    assert sum(result["gradients/table.weight"].counts) == 4  # its stored values


def test_a_run_records_them_and_a_resumed_run_continues_them(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SHORT, "model.hidden=[8]")
    whole = train(*words, name="whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        train(*words, name="half", status=130)
    with (whole.parent / "half" / "histograms.jsonl").open("a") as file:
        # A row of an update that is computed again, and a truncated row.
        file.write('{"num_updates": 6, "histograms": {}}\n{"num_up')
    half = train(*words, name="half")
    assert [line["num_updates"] for line in lines(whole)] == [2, 4, 6]
    assert lines(half) == lines(whole)
    last, final = lines(whole)[-1]["histograms"], weights(whole)
    for name, tensor in final.items():
        histogram = last[f"weights/{name}"]
        assert sum(histogram["counts"]) == tensor.numel()
        assert (histogram["low"], histogram["high"]) == pytest.approx(
            (float(tensor.min()), float(tensor.max()))
        )
        assert f"gradients/{name}" in last


@pytest.mark.extension
def test_tensorboard_shows_them(train: Train) -> None:
    folder = train(*SHORT[:-1], "tracker=tensorboard", "model.hidden=[8]")
    accumulator = EventAccumulator(str(folder / "tensorboard"), {"histograms": 0}).Reload()
    events = accumulator.Histograms("weights/classifier.bias")
    assert [event.step for event in events] == [2, 4, 6]
    assert events[-1].histogram_value.num == 10


@pytest.mark.extension
@pytest.mark.slow
def test_they_cause_no_compilation_and_no_graph_break(train: Train) -> None:
    words = (*SHORT, "compile=aot_eager", "compile.optimizer=true", "micro_batch_size=32",
             "max_grad_norm=0.5")  # fmt: skip
    reports = [summary(train(*words, *more, name=n))["compile"]
               for n, more in {"with": (), "without": ("histogram_every=null",)}.items()]  # fmt: skip
    assert (reports[0]["recompiles"], reports[0]["graph_breaks"]) == (0, 0)
    assert reports[0]["graphs"] == reports[1]["graphs"]


@pytest.mark.slow
@pytest.mark.extension
def test_several_ranks_give_the_histograms_of_one(train: Train, workdir: Path) -> None:
    # Not AdamW, which turns rounding errors into whole updates.
    words = (*SHORT, "optimizer=sgd", "model.hidden=[13,13]", "model.dropout=0")
    one = train(*words, name="one")
    run_on_ranks(2, workdir, [
        ("train", "name=ddp", *words, "micro_batch_size=16"),
        ("train", "name=fsdp", *words, "parallel=fsdp"),
        ("train", "name=replicated", *words, "parallel=hsdp", "parallel.replicate=2"),
    ])  # fmt: skip
    for name in ("ddp", "fsdp", "replicated"):
        for expected, actual in zip(lines(one), lines(workdir / "outputs" / name), strict=True):
            assert expected["histograms"].keys() == actual["histograms"].keys()
            for key, histogram in expected["histograms"].items():
                other = actual["histograms"][key]
                assert sum(other["counts"]) == sum(histogram["counts"]), (name, key)
                for end in ("low", "high"):
                    assert other[end] == pytest.approx(histogram[end], rel=1e-3, abs=1e-5), (name, key)
                distance = np.abs(np.cumsum(other["counts"]) - np.cumsum(histogram["counts"]))
                assert distance.max() <= 2, (name, key)  # rounding moves a value across an edge
