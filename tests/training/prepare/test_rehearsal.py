"""Samples for the checks before a run are read from any source; the error names why they cannot be read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trials import trials_of

from hydrant import seeding
from hydrant.batch import Batch, Outcome
from hydrant.data import Data, Indices, InMemorySource, StreamSpec
from hydrant.data.base import DamagedSamples, Stream
from hydrant.errors import ConfigError, DataError
from hydrant.tasks import Classification
from hydrant.training.costs import Flops
from hydrant.training.prepare.rehearsal import DryForward, dry_forward, dry_mixing, eval_metrics, read_samples


@dataclass
class OwnSource:
    """Gives batches of `sizes`, whatever is asked for. Others are damaged."""

    sizes: tuple[int, ...]
    num_damaged: int = 0
    num_samples: int = 20
    damaged: DamagedSamples = field(default_factory=DamagedSamples)

    def stream(self, spec: StreamSpec) -> Stream:
        raise NotImplementedError

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterator[Batch]:
        del spec, batch_size
        self.damaged.record({f"sample {n}": "cannot be read" for n in range(self.num_damaged)})
        for size in self.sizes:
            yield Batch(torch.zeros(size, 4), torch.zeros(size, dtype=torch.int64))

    def subset(self, indices: Indices) -> OwnSource:
        del indices
        return self


def read(source: OwnSource, num_samples: int) -> Batch:
    return read_samples(Data(source, source, (4,), 2, source.damaged), source, num_samples)


def test_rows_that_are_no_samples_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """As in a batch of graphs, whose nodes are in a row, or of images of several sizes in a list."""
    assert len(read(OwnSource((5,)), 2).targets) == 5
    assert "data: a batch of 2 samples has 5 rows" in caplog.text


def test_a_short_batch_may_come_before_one_of_the_size_asked_for() -> None:
    """A source may leave out samples on its own."""
    assert len(read(OwnSource((1, 2)), 2).targets) == 2


def test_damaged_samples_are_passed_over() -> None:
    assert len(read(OwnSource((1, 2), num_damaged=3), 2).targets) == 2
    message = r"2 sample.s. in a row cannot be read; the log names the damaged ones"
    with pytest.raises(DataError, match=message):
        read(OwnSource((1, 1), num_damaged=3), 2)
    with pytest.raises(DataError, match=r"1 sample.s. in a row cannot be read; the log"):
        read(OwnSource((), num_damaged=3), 1)


def test_targets_that_do_not_count_are_not_mixed() -> None:
    """Their number is no class, which may be met long after the run has started."""
    mixing: Any = SimpleNamespace(needs_classes=True)
    batch = Batch(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    task = Classification(nn.Linear(4, 2), label_smoothing=0, ignore_index=-100, metrics={})
    message = r"^mixing: targets that do not count \(task.ignore_index=-100\) cannot"
    with pytest.raises(ConfigError, match=message):
        dry_mixing(trials_of(task, points()), batch, mixing)


class _Failing(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        raise ValueError("too small")


def test_an_error_after_the_model_has_returned_is_not_the_model_s() -> None:
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"no {len(targets)}")

    source = OwnSource((2,), num_samples=2)
    settings: Any = {"label_smoothing": 0, "loss": loss, "metrics": {}}
    message = r"^task: fails in a trial of an evaluation, .* ValueError: no 2 \(at test_reh"
    with pytest.raises(ConfigError, match=message):
        dry_forward(trials_of(Classification(nn.Linear(4, 2), **settings), Data(source, source)))
    with pytest.raises(
        ConfigError,
        match=r"^model: fails in a trial of an evaluation, on inputs of shape \[2, 4\] .*: ValueError: too small",
    ):
        dry_forward(
            trials_of(Classification(nn.Sequential(_Failing(4, 2)), **settings), Data(source, source))
        )


IDS, TARGETS = torch.arange(16).view(2, 8), torch.full((2, 8), -100)


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        (Batch(IDS, TARGETS), 8),
        (Batch({"ids": IDS.int(), "mask": IDS > 3}, TARGETS), 8),
        (Batch(IDS, TARGETS[:, 0]), 0),  # texts with a class
        (Batch(IDS.float(), TARGETS), 0),
        (Batch(IDS[:, :4], TARGETS), 0),
        (Batch(IDS, IDS > 3), 0),
        (Batch(IDS, (TARGETS, TARGETS)), 0),
    ],
)
def test_samples_have_tokens_if_inputs_and_targets_are_sequences_of_them(batch: Batch, tokens: int) -> None:
    dry = DryForward(Flops(100, "", [], ""), batch, Outcome({}, {}, None, 0), [], batch, [])
    assert dry.costs == (tokens, 300)


def points() -> Data:
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    source = InMemorySource(inputs, torch.tensor([0, 1, 0, 1, 1, 0]))
    return Data(source, source, (4,), 2)


class Merging(nn.Linear):
    """Adds a matrix to its weight for evaluations, as low-rank adapters do, and takes it out to train."""

    def train(self, mode: bool = True) -> Merging:
        if mode != self.training:
            self.weight.data += -1.0 if mode else 1.0
        return super().train(mode)


def test_each_part_keeps_its_mode() -> None:
    shared = nn.Dropout(0.5)
    inner = nn.Sequential(nn.Linear(4, 4), shared)
    model = nn.Sequential(Merging(4, 4), inner.eval(), Merging(4, 2).eval(), shared)
    shared.train()
    modes = [module.training for module in model.modules()]
    weights = [weight.clone() for weight in model.parameters()]
    trials = trials_of(Classification(model, label_smoothing=0.0, metrics={}), points())
    _, outcome = trials.evaluate(points().val)
    dry_forward(trials)
    assert torch.equal(outcome.predictions, trials.evaluate(points().val)[1].predictions)
    assert [module.training for module in model.modules()] == modes
    for weight, before in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(weight, before)


class Counting(nn.Linear):
    """Counts its calls, keeps its outputs and draws from every generator."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", None)
        self.num_calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.num_calls += 1
        self.last = super().forward(input)
        self.mean, noise = self.last.mean(), random.random() + np.random.random()
        return self.last + torch.rand_like(self.last) + noise


def content(module: nn.Module) -> list[Any]:
    """Return what a module and its parts hold, with the bytes of tensors."""
    values = [value for part in module.modules() for value in (*vars(part).items(), *part._buffers.items())]
    tensors = [tensor.detach().numpy().tobytes() for tensor in (*module.parameters(), *module.buffers())]
    return [*tensors, *((name, repr(value)) for name, value in values)]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_of_a_rehearsal(fails: bool) -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(
        Counting(), norm, nn.Sequential(nn.Dropout(), nn.BatchNorm1d(4)).eval(), nn.Linear(4, 2)
    )
    settings: Any = {"loss": (lambda logits, targets: 1 / 0)} if fails else {}
    task = Classification(model, label_smoothing=0.0, metrics={}, **settings)
    norm(torch.randn(8, 4))
    before, states, drawn = content(task), seeding.host_state(), torch.get_rng_state()
    trials = trials_of(task, points())
    with pytest.raises(ConfigError) if fails else nullcontext():
        dry = dry_forward(trials)
        assert dry.written_buffers == ["model.0.calls", "model.0.last"]
    assert content(task) == before
    assert seeding.is_host_state(states)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_metric_and_a_validation_set_that_make_the_same_name_are_refused() -> None:
    outcome = Outcome({"loss": torch.tensor(0.5)}, {}, (), 1)
    batch = Batch(torch.ones(1), ())
    dry = DryForward(Flops(0, "", [], ""), batch, outcome, ["night/loss"], batch, [])
    assert eval_metrics(["val", "val/day", "val_ema"], dry) >= {"val/night/loss", "val/day/loss"}
    message = r"val/night/loss would be of the validation set night and of a metric"
    with pytest.raises(ConfigError, match=message):
        eval_metrics(["val", "val/night"], dry)
