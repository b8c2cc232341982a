"""The training loop: intervals, gradient accumulation, host syncs, reproducibility."""

from typing import Any

import pytest
import torch
from marks import of_extension, slow
from run_folders import assert_same_state, rows, saved
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import DIGITS, Train, whole_and_resumed

from hydrant.batch import Batch, Outcome
from hydrant.data import InMemorySource
from hydrant.tasks import Classification
from hydrant.terminal.console import Progress
from hydrant.training import loop
from hydrant.training.compilation import Compilation
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.trainer import Trainer


def test_rows_are_logged_at_zero_at_every_interval_and_at_the_end(train: Train) -> None:
    folder = train(*DIGITS, "duration=11", "log_every=3", "eval_every=4", "save_every=5")
    logged = rows(folder)
    updates = [row["num_updates"] for row in logged]
    assert [row["num_updates"] for row in logged if "train/loss" in row] == [3, 6, 9, 11]
    assert [row["num_updates"] for row in logged if "val/loss" in row] == [0, 4, 8, 11]
    assert max(path.name for path in (folder / "checkpoints").iterdir()) == "update_00000011"
    assert updates == sorted(set(updates))
    assert logged[-1]["epoch"] == 11 * 32 / 1437


def test_null_intervals_are_never_due_but_a_run_that_continues_ends_with_a_checkpoint(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*DIGITS, "duration=6", "log_every=null", "eval_every=null", "save_every=null")
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=3)
    assert rows(whole) == rows(resumed) == []
    assert not (whole / "checkpoints").exists()
    assert (resumed / "checkpoints" / "last").resolve().name == "update_00000006"


@pytest.mark.parametrize(("log_every", "is_measured"), [("null", False), ("1", True)])
def test_training_measures_only_what_is_logged(
    log_every: str, is_measured: bool, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, forward = set[tuple[bool, bool]](), Classification.forward

    def recording(self: Classification, batch: Batch) -> Outcome:
        outcome = forward(self, batch)
        seen.add((self.training, bool(outcome.measurements)))
        return outcome

    monkeypatch.setattr(Classification, "forward", recording)
    train(*DIGITS, "duration=2", f"log_every={log_every}")
    assert seen == {(True, is_measured), (False, True)}


def test_the_watchdog_observes_a_run_before_it_is_compiled(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling may take longer than a rank may stand still."""
    is_observed = list[bool]()
    monkeypatch.setattr(Watchdog, "is_on", True)
    monkeypatch.setattr(
        Compilation,
        "begin",
        lambda _, trainer: is_observed.append(trainer.watchdog in trainer.phase_observers),
    )
    train(*DIGITS, "duration=1")
    assert is_observed == [True]


class Uneven:
    """A stream of micro-batches of 24, 24 and 16 samples."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def micro_batches(self, num_updates: int) -> Any:
        whole = [torch.cat(parts) for parts in zip(*self._stream.micro_batches(num_updates), strict=True)]
        yield from map(Batch._make, zip(*(tensor.split(24) for tensor in whole), strict=True))

    def close(self) -> None: ...


@pytest.mark.parametrize("optimizer", ["sgd", *slow("adamw")])
def test_micro_batches_are_weighted_by_their_targets(
    train: Train, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """Four equal ones, or three that are not, are one batch."""
    words = (*DIGITS, f"optimizer={optimizer}", "global_batch_size=64", "model.dropout=0", "duration=6",
             "log_every=1")  # fmt: skip
    whole = train(*words, name="whole")
    equal = train(*words, "micro_batch_size=16", name="equal")
    stream = InMemorySource.stream
    monkeypatch.setattr(InMemorySource, "stream", lambda *args: Uneven(stream(*args)))
    uneven = train(*words, "micro_batch_size=16", name="uneven")  # the loop expects 4 of 16
    for parts, distance in ((equal, 1e-6), (uneven, 2e-6)):
        for one, other in zip(rows(whole), rows(parts), strict=True):
            assert (one["num_updates"], one.get("optim/lr")) == (other["num_updates"], other.get("optim/lr"))
            for key in ("train/loss", "train/accuracy", "val/loss", "optim/grad_norm"):
                assert one.get(key, 0) == pytest.approx(other.get(key, 0), abs=distance)
        torch.testing.assert_close(saved(parts, "model"), saved(whole, "model"), rtol=0, atol=1e-6)


class CountSyncs(TorchDispatchMode):
    """Counts operations for which the host waits for the device: reads, and copies that block."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default or (
            function is torch.ops.aten._to_copy.default
            and ((kwargs or {}).get("device") not in (None, args[0].device))
            and not (args[0].is_pinned() and (kwargs or {}).get("non_blocking"))
        ):
            self.count += 1
        return function(*args, **(kwargs or {}))


# Optimizers like Adam read their own step counters, which are on the host.
@pytest.mark.parametrize("optimizer", ["sgd", *of_extension("lion")])
def test_no_synchronisation_between_log_points(
    train: Train, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    counts: list[int] = []

    def counting(trainer: Trainer, *, measure: bool) -> Any:
        with CountSyncs() as syncs:
            update = make_update(trainer, measure=measure)
        if trainer.state.num_updates > 1:  # the first update creates the optimizer's state
            counts.append(syncs.count)
        return update

    make_update = loop.make_update
    monkeypatch.setattr(loop, "make_update", counting)
    train(*DIGITS, f"optimizer={optimizer}", "duration=8", "log_every=8", "max_grad_norm=1.0")
    assert counts == [0] * 7


@pytest.mark.parametrize("max_grad_norm", ["null", "1"])
def test_the_loss_scaler_synchronises_once_per_update(
    max_grad_norm: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, make_update = list[int](), loop.make_update

    def counted(trainer: Trainer, *, measure: bool) -> Any:
        with CountSyncs() as reads:
            update = make_update(trainer, measure=measure)
        counts.append(reads.count)
        return update

    monkeypatch.setattr(loop, "make_update", counted)
    # SGD, because AdamW reads its own step counters, which are on the host.
    train(*DIGITS, "precision=fp16", "optimizer=sgd", "duration=3", f"max_grad_norm={max_grad_norm}")
    assert counts == [1, 1, 1]


def test_clipping_bounds_the_update(train: Train) -> None:
    free = train(*DIGITS, "optimizer=sgd", "duration=4", "log_every=1", name="free")
    clipped = train(
        *DIGITS, "optimizer=sgd", "duration=4", "log_every=1", "max_grad_norm=1e-3", name="clipped"
    )
    assert rows(free)[1]["optim/grad_norm"] == rows(clipped)[1]["optim/grad_norm"]  # the norm before clipping
    frozen = train(*DIGITS, "optimizer=sgd", "duration=1", "save_every=1", "optimizer.lr=0", name="frozen")
    start = saved(frozen, "model")
    moved = sum(
        float((a - b).square().sum())
        for a, b in zip(saved(clipped, "model").values(), start.values(), strict=True)
    )
    assert 0 < moved**0.5 <= 4 * 0.1 * 1e-3 * 1.9 + 1e-6  # 4 updates of lr 0.1, momentum 0.9


def test_equal_configs_give_equal_runs_and_another_seed_does_not(train: Train) -> None:
    one, other = (train(*DIGITS, "duration=4", name=name) for name in ("one", "other"))
    third = train(*DIGITS, "duration=4", "seed=1", name="third")
    assert rows(one) == rows(other)
    assert_same_state(saved(one, "training"), saved(other, "training"))
    weights, others = saved(one, "model"), saved(third, "model")
    assert not all(torch.equal(weights[name], others[name]) for name in weights)


def test_a_run_makes_as_many_updates_as_its_duration(train: Train) -> None:
    advanced: list[int] = []

    class Counting(Progress):
        def advance(self, count: int = 1) -> None:
            advanced.append(count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "start", staticmethod(lambda *_: Counting()))
        train(*DIGITS, "duration=1ep")
    assert len(advanced) == 45  # ceil(1437 / 32)


@pytest.mark.parametrize("sizes", ["{0:32,100:64}", pytest.param("64", marks=pytest.mark.slow)])
def test_overfitting_one_batch(sizes: str, train: Train) -> None:
    folder = train("tracker=local", "debug=overfit", f"global_batch_size={sizes}")
    assert rows(folder)[-1]["train/loss"] < 0.01


def test_metrics_of_torchmetrics_and_schedules_of_other_fields_than_lr(train: Train) -> None:
    target = "torchmetrics.classification.MulticlassAccuracy"
    folder = train(*DIGITS, "duration=4", "log_every=1", "+scheduler@schedules.weight_decay=linear",
                   f"+task.metrics.top={{_target_: {target}, num_classes: 10, average: micro}}",
                   "+scheduler@schedules.betas.0=linear")  # fmt: skip
    last = [row for row in rows(folder) if "val/top" in row][-1]
    assert last["val/top"] == pytest.approx(last["val/accuracy"])
    logged = [row["optim/weight_decay"] for row in rows(folder) if "optim/weight_decay" in row]
    assert logged == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    betas = [row["optim/betas.0"] for row in rows(folder) if "optim/betas.0" in row]
    assert betas == pytest.approx([0.9, 0.675, 0.45, 0.225])
