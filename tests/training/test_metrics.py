"""Meters, measurements and the speed of training."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from trials import trials_of

from hydrant.batch import Batch, Outcome
from hydrant.data import digits
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task
from hydrant.training import metrics
from hydrant.training.metrics import Meter, Pace, merge_meters
from hydrant.training.prepare.rehearsal import dry_forward

CPU = torch.device("cpu")


@pytest.mark.parametrize("saved_at", [0, 2, 63, 64, 65, 130, 299])
def test_weighted_means_survive_a_save(saved_at: int) -> None:
    generator = torch.Generator().manual_seed(saved_at)
    weights = torch.randint(1, 3, (300,), generator=generator).repeat_interleave(40)[:300].tolist()
    values = [
        dict(zip(("loss", "accuracy"), torch.rand(2, generator=generator), strict=True)) for _ in weights
    ]
    whole, first, second = Meter(CPU), Meter(CPU), Meter(CPU)
    for position, (scalars, weight) in enumerate(zip(values, weights, strict=True)):
        whole.add(scalars, weight)
        if position == saved_at:
            second.load_state_dict(first.state_dict())
        (first if position < saved_at else second).add(scalars, weight)
        second.first_non_finite()  # reading it changes nothing
    total = sum(weights)
    expected = {
        key: sum(float(v[key].double()) * w for v, w in zip(values, weights, strict=True)) / total
        for key in ("loss", "accuracy")
    }
    read = whole.read({"norm": torch.tensor(2.5)})
    assert read == pytest.approx(expected | {"norm": 2.5}, rel=1e-12)
    assert second.read() == {key: read[key] for key in expected}


def test_the_meters_of_several_ranks_are_merged() -> None:
    meters = [Meter(CPU), Meter(CPU), Meter(CPU)]
    for value, weight in ((1.0, 3), (2.0, 3), (4.0, 1)):
        meters[0].add({"loss": torch.tensor(value)}, weight)
    meters[1].add({"loss": torch.tensor(8.0)}, 2)
    one = Meter(CPU)
    one.load_state_dict(merge_meters([meter.state_dict() for meter in meters]))
    assert one.read() == {"loss": pytest.approx((3 + 6 + 4 + 16) / 9)}


def test_names_that_change_before_a_read_are_refused() -> None:
    meter = Meter(CPU)
    meter.add({"loss": torch.tensor(1.0)}, 1)
    meter.add({"other": torch.tensor(1.0)}, 0)
    message = r"^task: gives loss, accuracy for a batch and loss for others; give the same names"
    with pytest.raises(ConfigError, match=message):
        meter.add({"loss": torch.tensor(3.0), "accuracy": torch.tensor(1.0)}, 1)
    with pytest.raises(ConfigError, match="gives loss, accuracy for a batch and loss for others"):
        meter.add_sums(["loss", "accuracy"], torch.tensor([3.0, 1.0]), torch.tensor(1))
    meter.read()
    meter.add({"loss": torch.tensor(3.0), "accuracy": torch.tensor(1.0)}, torch.tensor(1))
    meter.add({"accuracy": torch.tensor(0.5), "loss": torch.tensor(1.0)}, torch.tensor(1))
    assert meter.read() == {"loss": 2.0, "accuracy": 0.75}


def test_a_run_whose_task_was_changed_begins_its_row_at_the_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, after = Meter(CPU), Meter(CPU)
    before.add({"loss": torch.tensor(1.0)}, 1)
    after.load_state_dict(before.state_dict())
    after.add({"loss": torch.tensor(3.0), "accuracy": torch.tensor(1.0)}, 1)
    assert after.read() == {"loss": 3.0, "accuracy": 1.0}
    assert "the task measures other values than before" in caplog.text


def test_the_first_non_finite_is_named() -> None:
    meter = Meter(CPU)
    assert meter.first_non_finite() is None
    meter.add({"a": torch.tensor(1.0), "b": torch.tensor(float("inf"))}, 1)
    assert meter.first_non_finite() == "b"


def test_means_are_reduced_over_the_ranks() -> None:
    meter = Meter(CPU, all_reduce=lambda sums: sums * 4)  # four equal ranks
    meter.add({"a": torch.tensor(3.0)}, 2)
    assert meter.read() == {"a": 3.0}


def test_a_rank_without_targets_reduces_zeros() -> None:
    num_reads: list[int] = []
    meter = Meter(CPU, all_reduce=lambda sums: num_reads.append(len(sums)) or sums)
    meter.add({"a": torch.tensor(float("nan"))}, 0)
    assert meter.read() == {}
    meter.add({"a": torch.tensor(float("nan"))}, 0)
    meter.add({"a": torch.tensor(1.0)}, 2)
    assert meter.read() == {"a": 1.0}
    assert num_reads == [2, 2]


def test_the_pace_counts_queued_training_and_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of the test, and a CUDA device whose queue takes 3 s."""
    seconds = iter([0.0, 3.0, 8.0, 10.0])  # start, beginning and end of a pause, read
    waits: list[torch.device] = []
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    pace = Pace(10, torch.device("cuda", 0))
    with pace.paused():
        assert waits == [torch.device("cuda", 0)]
    assert pace.read(20) == 10 / 5
    assert pace.logged_at == 20


@pytest.mark.parametrize("saved_at", [0, 5, 64, 100])
@pytest.mark.parametrize("size", [48, 70_000])
def test_bool_tensors_are_means_over_targets(saved_at: int, size: int) -> None:
    """The means are exact for any number of targets, even if memory is overwritten and the state saved in between."""
    generator, num_true, num_targets = torch.Generator().manual_seed(saved_at), 0, 0
    meter, resumed, memory = Meter(CPU), Meter(CPU), torch.zeros(size, dtype=torch.bool)
    for position in range(150):
        flags = memory if position < 130 else memory[:30].view(5, 6)
        flags.copy_(torch.rand(flags.shape, generator=generator) < 0.3)
        num_true, num_targets = num_true + int(flags.sum()), num_targets + flags.numel()
        if position == saved_at:
            resumed.load_state_dict(meter.state_dict())
        for receiver in (meter, resumed) if position >= saved_at else (meter,):
            receiver.add({"loss": torch.tensor(2.0), "accuracy": flags}, flags.numel())
    read = meter.read()
    assert read == resumed.read()
    assert read == {"loss": 2.0, "accuracy": pytest.approx(num_true / num_targets, rel=1e-12)}


def test_weights_that_are_tensors_count_like_numbers() -> None:
    """A weight of 0 too, and if the state is saved in between."""
    numbers, tensors = Meter(CPU), Meter(CPU)
    for position, weight in enumerate([3, 0, 1, 4, 0]):
        values = {"loss": torch.tensor(float(position)), "flags": torch.arange(5) < position}
        numbers.add(values, weight)
        tensors.add(values, torch.tensor(weight))
        resumed = Meter(CPU)
        resumed.load_state_dict(tensors.state_dict())
        tensors = resumed
    assert tensors.read() == pytest.approx(numbers.read(), rel=1e-12)
    assert tensors.read() == {}


@pytest.mark.parametrize("value", [torch.zeros(3), torch.zeros(70_000), torch.zeros(2, 2, dtype=torch.int64)])
def test_other_measurements_than_scalars_and_bools_are_rejected(value: torch.Tensor) -> None:
    meter = Meter(CPU)
    meter.add({"loss": torch.tensor(1.0), "odd": value}, 3)
    with pytest.raises(ConfigError, match=r"loss or measurement 'odd', not one number; give its mean"):
        meter.read()


@pytest.mark.parametrize("value", [0.5, torch.zeros(3)])
def test_wrong_measurements_are_rejected_before_a_run_starts(value: Any) -> None:
    class Odd(Task):
        def forward(self, batch: Batch) -> Outcome:
            logits = self.model(batch.inputs.flatten(1))
            return Outcome({"loss": logits.mean()}, {"odd": value}, logits.detach(), len(batch.targets))

    data = digits()
    with pytest.raises(ConfigError, match=r"task: .*'odd'.*, (which is not|not one number)"):
        dry_forward(trials_of(Odd(torch.nn.Linear(64, 10)), data))


def test_bool_tensors_of_many_updates_are_reduced_together() -> None:
    """So an update launches only one copy per value."""
    meter, counted = Meter(CPU), Counter[str]()
    flags, loss = torch.ones(8, dtype=torch.bool), torch.tensor(1.0)

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counted[str(func)] += 1
            return func(*args, **(kwargs or {}))

    with Counting():
        for _ in range(128):
            meter.add({"loss": loss, "accuracy": flags}, 8)
    assert counted.pop("aten.clone.default") == 2 * 128
    assert counted["aten.stack.default"] == 2 * 3
    assert sum(counted.values()) < 64


def test_parameters_and_views_are_copied_when_they_are_added() -> None:
    """The mean of a learned scale uses its values at the time of each call, even if the state is saved in between."""
    scale, meter, resumed = torch.nn.Parameter(torch.tensor(1.0)), Meter(CPU), Meter(CPU)
    large = torch.zeros(1000)
    for value in (1.0, 2.0, 6.0):
        scale.data.fill_(value)
        large[0] = value
        meter.add({"scale": scale, "part": large[0], "loss": 2 * scale}, weight=1)
    assert all(pending.untyped_storage().nbytes() == 4 for pending in meter._pending)
    resumed.load_state_dict(meter.state_dict())
    scale.data.fill_(100.0)
    assert meter.read() == resumed.read() == {"scale": 3.0, "part": 3.0, "loss": 6.0}
