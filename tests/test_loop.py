"""The loop: how many updates, what is logged when, accumulation, synchronisation, resuming."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import interrupt_at
from checks import saved as checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from hydrant import cli, journal, loop
from hydrant import run as hydrant_run
from hydrant.batch import Batch, Outcome
from hydrant.data import ResidentSource
from hydrant.tasks import Classification
from hydrant.trackers.base import NullTracker
from hydrant.trackers.progress import Progress
from hydrant.watchdog import Watchdog

Train = Callable[..., Path]
DIGITS = (
    "tracker=local",
    "data=digits",
    "model.hidden=[16]",
    "global_batch_size=32",
    "eval_every=4",
    "save_every=4",
)


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Equal but for the time and the pace."""

    def shared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "time" and not k.startswith("perf/")} for row in rows]

    return shared(one) == shared(other)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def test_rows_at_zero_at_every_cadence_and_at_the_end(train: Train) -> None:
    folder = train(*DIGITS, "duration=11", "log_every=3", "eval_every=4", "save_every=5")
    rows = read(folder)
    logged = [row["num_updates"] for row in rows if "train/loss" in row]
    evaluated = [row["num_updates"] for row in rows if "val/loss" in row]
    saved = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert logged == [3, 6, 9, 11]
    assert evaluated == [0, 4, 8, 11]
    assert saved[-1] == "update_00000011"
    assert [row["num_updates"] for row in rows] == sorted({row["num_updates"] for row in rows})
    assert rows[-1]["epoch"] == 11 * 32 / 1437


def test_null_cadences_never_happen(train: Train) -> None:
    folder = train(*DIGITS, "duration=3", "log_every=null", "eval_every=null", "save_every=null")
    assert read(folder) == []
    assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize(("log_every", "is_measured"), [("null", False), ("1", True)])
def test_training_measures_what_is_logged_alone(
    log_every: str, is_measured: bool, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, forward = set[tuple[bool, bool]](), Classification.forward

    def noted(self: Classification, batch: Batch) -> Outcome:
        outcome = forward(self, batch)
        seen.add((self.training, bool(outcome.measurements)))
        return outcome

    monkeypatch.setattr(Classification, "forward", noted)
    train(*DIGITS, "duration=2", f"log_every={log_every}")
    assert seen == {(True, is_measured), (False, True)}


def test_the_watchdog_hears_of_a_run_before_it_is_compiled(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may take longer than a rank may stand still."""
    heard = list[bool]()
    monkeypatch.setattr(Watchdog, "is_on", True)
    monkeypatch.setattr(hydrant_run, "try_compiled", lambda run: heard.append(run.watchdog in run.followers))
    train(*DIGITS, "duration=1")
    assert heard == [True]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_four_micro_batches_are_one_batch(train: Train, optimizer: str) -> None:
    same_run = (*DIGITS, f"optimizer={optimizer}", "global_batch_size=64", "model.dropout=0", "duration=6",
                "log_every=1")  # fmt: skip
    whole = train(*same_run, name="whole")
    parts = train(*same_run, "micro_batch_size=16", name="parts")
    for one, other in zip(read(whole), read(parts), strict=True):
        assert one["num_updates"] == other["num_updates"]
        assert one.get("optim/lr") == other.get("optim/lr")
        for key in ("train/loss", "train/accuracy", "val/loss"):
            assert one.get(key, 0) == pytest.approx(other.get(key, 0), abs=1e-6)
    for a, b in zip(checkpoint(whole, "model").values(), checkpoint(parts, "model").values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


class CountSyncs(TorchDispatchMode):
    """Counts what makes the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default or (
            function is torch.ops.aten._to_copy.default
            and ((kwargs or {}).get("device") not in (None, args[0].device))
        ):
            self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "optimizer", ["sgd", "lion"]
)  # Adam's kind reads its own step counters, which lie on the host
def test_no_synchronisation_between_log_points(
    train: Train, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    counts: list[int] = []

    def counting(run: loop.Run, *, measure: bool) -> Any:
        with CountSyncs() as syncs:
            update = make_update(run, measure=measure)
        if run.state.num_updates > 1:  # the first makes the optimizer's state
            counts.append(syncs.count)
        return update

    make_update = loop.make_update
    monkeypatch.setattr(loop, "make_update", counting)
    train(*DIGITS, f"optimizer={optimizer}", "duration=8", "log_every=8", "max_grad_norm=1.0")
    assert counts == [0] * 7


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_synchronisation_between_log_points_on_cuda(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(run: loop.Run, *, measure: bool) -> Any:
        torch.cuda.set_sync_debug_mode("error" if run.state.num_updates > 1 else "default")
        try:
            return make_update(run, measure=measure)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    make_update = loop.make_update
    monkeypatch.setattr(loop, "make_update", strict)
    train(*DIGITS, "duration=8", "log_every=8", "max_grad_norm=1.0")


MASKED = """
import torch
from hydrant.models import MLP

class Masked(MLP):
    def __init__(self, spoil_at, **settings):
        super().__init__(**settings)
        self.spoil_at = spoil_at
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, inputs):
        if self.training and not inputs.is_meta:
            self.count += 1
            if self.count == self.spoil_at:
                self.mask.fill_(torch.nan)
        return super().forward(inputs)
"""


def test_a_buffer_may_hold_infinity_but_not_nan(
    train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "masked.py").write_text(MASKED)
    monkeypatch.syspath_prepend(workdir)
    words = (*DIGITS, "model._target_=masked.Masked", "allow_targets=[masked]", "duration=4", "save_every=2")
    train(*words, "+model.spoil_at=0")
    folder = train(*words, "+model.spoil_at=3", name="spoilt", status=1)
    assert "a buffer became NaN or infinite" in capsys.readouterr().err
    assert [path.name for path in (folder / "checkpoints").glob("update_*")] == ["update_00000002"]


def test_clipping_bounds_the_update(train: Train) -> None:
    free = train(*DIGITS, "optimizer=sgd", "duration=4", "log_every=1", name="free")
    clipped = train(
        *DIGITS, "optimizer=sgd", "duration=4", "log_every=1", "max_grad_norm=1e-3", name="clipped"
    )
    assert read(free)[1]["optim/grad_norm"] == read(clipped)[1]["optim/grad_norm"]  # the norm before clipping
    start = checkpoint(
        train(*DIGITS, "optimizer=sgd", "duration=1", "save_every=1", "optimizer.lr=0", name="start"), "model"
    )
    moved = sum(
        float((a - b).square().sum())
        for a, b in zip(checkpoint(clipped, "model").values(), start.values(), strict=True)
    )
    assert 0 < moved**0.5 <= 4 * 0.1 * 1e-3 * 1.9 + 1e-6  # 4 updates of lr 0.1, momentum 0.9


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb", "muon", "torch_muon", "lbfgs", "asgd"])
@pytest.mark.parametrize("stop_at", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_an_interrupted_run_continues_as_if_it_had_not_been(
    train: Train, monkeypatch: pytest.MonkeyPatch, optimizer: str, stop_at: int
) -> None:
    same_run = (*DIGITS, f"optimizer={optimizer}", "duration=10", "log_every=4", "micro_batch_size=16",
                "data.augment.max_shift=1", "model.dropout=0.3", "scheduler.warmup=20%", "keep_last=9")  # fmt: skip
    whole = train(*same_run, name="whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, stop_at)
        broken = train(*same_run, name="broken", status=130)
    status = json.loads((broken / "summary.json").read_text())
    assert (status["status"], status["num_updates"]) == ("preempted", stop_at)
    train(*same_run, name="broken")
    assert same(read(whole), read(broken))
    for part in ("model", "training"):
        assert equal(checkpoint(whole, part), checkpoint(broken, part))


class _Reads(TorchDispatchMode):
    """Counts how often the host asks for a number."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("max_grad_norm", ["null", "1"])
def test_the_loss_scaler_synchronises_once_an_update(
    max_grad_norm: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, make_update = list[int](), loop.make_update

    def counted(run: loop.Run, *, measure: bool) -> Any:
        with _Reads() as reads:
            update = make_update(run, measure=measure)
        counts.append(reads.count)
        return update

    monkeypatch.setattr(loop, "make_update", counted)
    # (AdamW reads its own counters, which are on the host.)
    train(*DIGITS, "precision=fp16", "optimizer=sgd", "duration=3", f"max_grad_norm={max_grad_norm}")
    assert counts == [1, 1, 1]


def test_fp16_state_and_skipped_updates_resume(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    same_run = (*DIGITS, "precision=fp16", "precision.init_scale=1e9", "duration=8", "log_every=1")
    whole = train(*same_run, name="whole")
    assert read(whole)[-1]["optim/num_skipped"] > 0  # so large a scale overflows first
    assert read(whole)[-1]["num_updates"] == 8
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        train(*same_run, name="broken", status=130)
    broken = train(*same_run, name="broken")
    assert same(read(whole), read(broken))
    assert equal(checkpoint(whole, "training"), checkpoint(broken, "training"))


def test_a_gradient_that_always_overflows_fails_the_run(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*DIGITS, "precision=fp16", "precision.init_scale=1e30", "max_skipped=2", "duration=2", status=1)
    assert "a scaled gradient became NaN or infinite" in capsys.readouterr().err


POISON = """
from torch import nn

class Poisoned(nn.Module):
    def __init__(self, *, input_shape, num_classes, hidden, dropout, bad):
        super().__init__()
        self.norm, self.linear, self.bad, self.calls = nn.BatchNorm1d(64), nn.Linear(64, 10), bad, 0

    def forward(self, inputs):
        self.calls += self.training
        if self.training and self.calls in self.bad:
            inputs = inputs * float("nan")
        return self.linear(self.norm(inputs.flatten(1)))
"""


def test_updates_that_are_not_finite_are_passed_over_and_counted(
    train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(workdir)
    (workdir / "poison.py").write_text(POISON)
    words = (*DIGITS, "model._target_=poison.Poisoned", "allow_targets=[poison]", "duration=8", "log_every=1",
             "averaging=ema", "averaging.decay=0.5", "scheduler=constant")  # fmt: skip
    train(*words, "+model.bad=[3,4,7]", name="failed", status=1)
    passed = read(train(*words, "+model.bad=[3,4,7]", "skip_non_finite=true", name="passed"))
    logged = [row for row in passed if "optim/lr" in row]
    assert [row["num_updates"] for row in logged] == list(range(1, 9))
    assert [n for n, row in enumerate(logged, start=1) if "train/loss" not in row] == [3, 4, 7]
    assert logged[-1]["optim/num_skipped"] == 3
    assert math.isfinite(passed[-1]["val/loss"])
    only_two = train(*words, "+model.bad=[3,4,5,6,7,8]", "skip_non_finite=true", name="only_two")
    two = train(*words, "+model.bad=[]", "duration=2", name="two")
    for part in (
        "model",
        "ema",
    ):  # nothing that was passed over left a trace, in the statistics of the norm either
        assert equal(checkpoint(only_two, part), checkpoint(two, part))
    train(*words, "+model.bad=[2,4,5,6]", "skip_non_finite=true", "max_skipped=2", name="many", status=1)
    assert "between updates 3 and 6; more in a row than max_skipped=2" in capsys.readouterr().err
    half = train(*words, "+model.bad=[3,4,7]", "skip_non_finite=true", "precision=fp16", name="half")
    assert read(half)[-1]["optim/num_skipped"] == 3  # not for want of a smaller scale


def test_an_overflow_leaves_no_trace_in_the_statistics_of_a_norm(train: Train) -> None:
    words = (
        "tracker=local",
        "model=convnet",
        "model.widths=[4,8]",
        "precision=fp16",
        "duration=3",
        "log_every=1",
    )
    folder = train(*words, "precision.init_scale=1e9")
    state = checkpoint(folder, "model")
    counted = {int(value) for name, value in state.items() if name.endswith("num_batches_tracked")}
    assert read(folder)[-1]["num_updates"] == 3
    assert counted == {3}


class Uneven:
    """Micro-batches of 24, 24 and 16 samples: a stream of one's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def micro_batches(self, num_updates: int) -> Any:
        whole = [torch.cat(parts) for parts in zip(*self._stream.micro_batches(num_updates), strict=True)]
        yield from map(Batch._make, zip(*(tensor.split(24) for tensor in whole), strict=True))

    def close(self) -> None: ...


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_smaller_last_micro_batch_counts_by_its_targets(
    train: Train, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    words = (*DIGITS, f"optimizer={optimizer}", "global_batch_size=64", "model.dropout=0", "duration=6",
             "log_every=1")  # fmt: skip
    whole = train(*words, name="whole")
    stream = ResidentSource.stream
    monkeypatch.setattr(ResidentSource, "stream", lambda *given: Uneven(stream(*given)))
    uneven = train(*words, "micro_batch_size=16", name="uneven")  # 4 of 16 expected, 3 come
    for one, other in zip(read(whole), read(uneven), strict=True):
        for key in ("train/loss", "train/accuracy", "val/loss", "optim/grad_norm"):
            assert one.get(key, 0) == pytest.approx(other.get(key, 0), abs=2e-6)
    for a, b in zip(checkpoint(whole, "model").values(), checkpoint(uneven, "model").values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_nan_names_the_interval_and_keeps_the_last_good_checkpoint(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*DIGITS, "optimizer=sgd", "optimizer.lr=1e30", "duration=40", "log_every=8", "eval_every=null",
                   "save_every=8", status=1)  # fmt: skip
    assert "train/loss became NaN or infinite between updates 0 and 8" in capsys.readouterr().err
    assert not (folder / "checkpoints").exists()
    written = json.loads((folder / "summary.json").read_text())
    assert written["status"] == "failed"
    assert written["error"]["type"] == "NonFiniteError"
    assert "Traceback" in (folder / "train.log").read_text()


def test_the_best_checkpoint_is_the_best_evaluation(train: Train) -> None:
    folder = train(*DIGITS, "duration=24", "keep_last=1", "optimizer.lr=0.05", "scheduler=constant")
    evaluations = {row["num_updates"]: row["val/accuracy"] for row in read(folder) if "val/accuracy" in row}
    best = json.loads((folder / "summary.json").read_text())["best"]
    assert best["value"] == max(evaluations.values())
    assert evaluations[best["num_updates"]] == best["value"]
    assert (folder / "checkpoints" / "best").resolve().name == f"update_{best['num_updates']:08d}"
    assert (folder / "checkpoints" / "last").resolve().name == "update_00000024"
    assert len([p for p in (folder / "checkpoints").iterdir() if not p.is_symlink()]) <= 2


def test_best_by_a_loss_is_the_least(train: Train) -> None:
    folder = train(*DIGITS, "duration=12", "best.metric=val/loss", "best.mode=min")
    losses = [row["val/loss"] for row in read(folder) if "val/loss" in row]
    assert json.loads((folder / "summary.json").read_text())["best"]["value"] == min(losses)


class Broken:
    """Raises what it is given, whatever is called of it."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._error


def test_what_is_only_for_looking_at_may_fail(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(journal, "draw_curves", Broken(OSError(28, "No space left on device")))
    monkeypatch.setattr(NullTracker, "finish", Broken(RuntimeError("not today")))
    folder = train(*DIGITS, "duration=4")
    told = capsys.readouterr().out
    assert "schedule.png cannot be written: No space left on device" in told
    assert "tracker: RuntimeError: not today" in told
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
    assert (folder / "compile_report.json").is_file()


def test_a_record_that_cannot_be_written_is_a_failure(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(journal, "read_metrics", Broken(OSError(28, "No space left on device")))
    train(*DIGITS, "duration=4", status=1)
    assert capsys.readouterr().err == "error: OSError: [Errno 28] No space left on device\n"


def test_a_run_that_cannot_be_built_says_on_what_it_ran(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hydrant_run, "build", Broken(RuntimeError("CUDA error: no kernel image")))
    folder = train(*DIGITS, "duration=4", status=1)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["error"] == {"type": "RuntimeError", "message": "CUDA error: no kernel image"}
    assert summary["environment"]["torch"] == torch.__version__
    assert (summary["num_updates"], summary["total_updates"]) == (0, 4)


def test_a_fault_of_no_part_has_its_traceback_in_the_log_alone(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class OddError(Exception): ...

    monkeypatch.setattr(hydrant_run, "prepare", Broken(OddError("odd")))
    folder = train(*DIGITS, "duration=4", status=1)
    assert re.fullmatch(r"error: OddError: odd \(at test_loop.py:\d+\); \S+train.log has the traceback\n",
                        capsys.readouterr().err)  # fmt: skip
    assert "Traceback" in (folder / "train.log").read_text()


@pytest.mark.parametrize(
    ("at", "what"), [(2, "starts again"), (6, "continues from update_00000004")], ids=["early", "late"]
)
def test_ctrl_c_twice_promises_what_there_is(
    at: int, what: str, train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with monkeypatch.context() as patch:
        interrupt_at(patch, at, times=2)
        train(*DIGITS, "duration=8", status=130)
        assert cli.main(["train", *DIGITS, "duration=8"]) == 130
    named, unnamed = capsys.readouterr().err.splitlines()
    assert named == f"stopped by SIGINT without saving; the same command {what}"
    stopped = "stopped by SIGINT without saving; the same command with hydra.run.dir="
    folder = unnamed.removeprefix(stopped).removesuffix(f" {what}")
    assert json.loads((workdir / folder / "summary.json").read_text())["status"] == "preempted"
    assert cli.main(["train", *DIGITS, "duration=8", f"hydra.run.dir={folder}"]) == 0
    assert same(read(workdir / folder), read(train(*DIGITS, "duration=8")))


def test_ctrl_c_twice_while_the_trackers_end_does_not_undo_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(NullTracker, "finish", Broken(KeyboardInterrupt()))
    folder = train(*DIGITS, "duration=4", status=130)
    assert "the run is finished, its trackers may miss the end" in capsys.readouterr().err
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


def test_ctrl_c_again_while_a_stopped_run_ends_still_says_how_it_goes_on(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(NullTracker, "finish", Broken(KeyboardInterrupt()))
        interrupt_at(patch, 3)
        train(*DIGITS, "duration=8", status=130)
    told = "stopped by SIGINT after update 3; the same command continues it"
    assert capsys.readouterr().err.splitlines()[-1] == told


LEAVES = """
import sys
from hydrant.errors import ConfigError
from hydrant.tasks import Classification

class Leaves(Classification):
    def __init__(self, model, *, how, **rest):
        super().__init__(model, **rest)
        self.how = how

    def forward(self, batch):
        if self.training:
            raise ConfigError("how", "wrong") if self.how == "wrong" else SystemExit(self.how)
        outcome = super().forward(batch)
        return outcome
"""


@pytest.mark.parametrize("how", [0, 1, "'bad thing'", "wrong"])
def test_a_part_that_leaves_while_it_trains_has_failed(
    how: object,
    train: Train,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (workdir / "leaves.py").write_text(LEAVES)
    monkeypatch.syspath_prepend(workdir)
    own = ("allow_targets=[leaves]", "task._target_=leaves.Leaves", f"+task.how={how}")
    folder = train(*DIGITS, *own, "duration=4", status=1)
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_is_infinite_is_never_the_best(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = loop.evaluate_run

    def evaluated(run: loop.Run) -> dict[str, float]:
        return evaluate(run) | {"val/loss": math.inf if run.state.num_updates != 8 else 1.0}

    monkeypatch.setattr(loop, "evaluate_run", evaluated)
    folder = train(*DIGITS, "duration=12", "best.metric=val/loss", "best.mode=min")
    assert json.loads((folder / "summary.json").read_text())["best"]["num_updates"] == 8


def test_a_run_without_a_new_best_ends_early_and_is_finished(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate, shown = loop.evaluate_run, {4: 0.5, 8: 0.7, 12: 0.6, 16: 0.7, 20: 0.1, 24: 0.9}

    def evaluated(run: loop.Run) -> dict[str, float]:
        return evaluate(run) | {"val/accuracy": shown.get(run.state.num_updates, 0.0)}

    monkeypatch.setattr(loop, "evaluate_run", evaluated)
    stalling = (*DIGITS, "duration=30", "patience=3", "save_every=30")
    folder = train(*stalling, name="whole")
    assert "finished: 20 updates (no new best for so long as patience says)" in capsys.readouterr().out
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["num_updates"], summary["total_updates"]) == ("finished", 20, 30)
    assert summary["best"]["num_updates"] == 8
    assert (folder / "checkpoints" / "last").resolve().name == "update_00000020"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 14)
        train(*stalling, name="broken", status=130)
    assert same(read(train(*stalling, name="broken")), read(folder))
    train(*stalling, name="broken")
    assert "already finished" in capsys.readouterr().out


def test_a_damaged_record_is_named(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*DIGITS, "duration=4")
    (folder / "summary.json").write_text("")
    train(*DIGITS, "duration=4", status=1)
    assert "summary.json is damaged (Expecting value" in capsys.readouterr().err
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").write_text('{"num_updates": 0\n{"num_updates": 4}\n')
    train(*DIGITS, "duration=4", status=1)
    assert "metrics.jsonl is damaged" in capsys.readouterr().err


def test_a_finished_run_is_left_alone(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*DIGITS, "duration=4")
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    train(*DIGITS, "duration=4")
    assert "already finished" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_resume_from_another_run_and_weights_only(train: Train) -> None:
    first = train(*DIGITS, "duration=8", "keep_last=9", name="first")
    again = train(*DIGITS, "duration=8", f"resume={first}/checkpoints/update_00000004", name="again")
    assert same(read(first), read(again))
    assert equal(checkpoint(first, "training"), checkpoint(again, "training"))
    tuned = train(*DIGITS, "duration=4", "optimizer.lr=0", f"init_from={first}", name="tuned")
    assert equal(checkpoint(tuned, "model"), checkpoint(first, "model"))
    assert read(tuned)[0]["num_updates"] == 0


def test_a_run_that_goes_on_from_another_takes_over_what_it_needs(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also from a complete one, and the best one, which need not be the newest."""
    best_first = (*DIGITS, "duration=8", "optimizer=sgd", "optimizer.lr=9", "keep_last=1", "save_every=8")
    first = train(*best_first, name="first")
    best = json.loads((first / "summary.json").read_text())["best"]
    assert best["num_updates"] < 8
    again = train(*best_first, f"resume={first}", name="again")
    assert same(read(first), read(again))
    for link, num_updates in (("last", 8), ("best", best["num_updates"])):
        assert (again / "checkpoints" / link).resolve().name == f"update_{num_updates:08d}"
        assert equal(checkpoint(first, "model", link), checkpoint(again, "model", link))
    assert json.loads((again / "summary.json").read_text())["best"] == best
    (first / "checkpoints" / f"update_{best['num_updates']:08d}").rename(first / "elsewhere")
    third = train(*best_first, f"resume={first}", name="third")
    assert "the best checkpoint so far" in capsys.readouterr().out
    assert not (third / "checkpoints" / "best").is_symlink()


def test_a_run_does_not_go_back_to_an_older_checkpoint_of_its_own(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    older = "outputs/run/checkpoints/update_00000004"
    train(*DIGITS, "duration=8", "keep_last=9")
    train(*DIGITS, "duration=8", "keep_last=9", f"resume={older}", status=2)
    told = f"resume: this run goes on from its own update_00000008, not from {older}"
    assert told in capsys.readouterr().err
    train(*DIGITS, "duration=8", "keep_last=9", "resume=outputs/run/checkpoints/last")


def test_a_run_that_has_begun_does_not_go_over_to_another(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*DIGITS, "duration=8", name="other")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        train(*DIGITS, "duration=8", status=130)
    train(*DIGITS, "duration=8", "resume=outputs/other", status=2)
    assert "this run goes on from its own update_00000002, not from outputs/other" in capsys.readouterr().err
    with monkeypatch.context() as patch:  # but one that came from there is found again by the same command
        interrupt_at(patch, 6)
        from_other = ("duration=8", "resume=outputs/other/checkpoints/update_00000004")
        train(*DIGITS, *from_other, name="third", status=130)
    train(*DIGITS, *from_other, name="third")


def test_two_runs_are_equal_and_another_seed_is_not(train: Train) -> None:
    one, other = (train(*DIGITS, "duration=4", name=name) for name in ("one", "other"))
    third = train(*DIGITS, "duration=4", "seed=1", name="third")
    assert same(read(one), read(other))
    assert equal(checkpoint(one, "training"), checkpoint(other, "training"))
    assert not equal(checkpoint(one, "model"), checkpoint(third, "model"))


def test_the_number_of_updates_is_the_horizon(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    advanced: list[int] = []

    class Counting(Progress):
        def __init__(self) -> None: ...

        def advance(self) -> None:
            advanced.append(1)

        def log(self, row: Any) -> None: ...

        def close(self) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "start", staticmethod(lambda *_: Counting()))
        train(*DIGITS, "duration=1ep")
    assert len(advanced) == 45  # ceil(1437 / 32)


def test_overfitting_one_batch(train: Train) -> None:
    folder = train("tracker=local", "debug=overfit")
    assert read(folder)[-1]["train/loss"] < 0.01


def test_smoke(train: Train) -> None:
    folder = train("debug=smoke")
    assert [row["num_updates"] for row in read(folder)] == [0, 1, 2, 3, 4]


def test_torchmetrics_in_evaluation(train: Train) -> None:
    target = "torchmetrics.classification.MulticlassAccuracy"
    metric = f"+task.metrics.top={{_target_: {target}, num_classes: 10, average: micro}}"
    folder = train(*DIGITS, "duration=4", metric)
    last = read(folder)[-1]
    assert last["val/top"] == pytest.approx(last["val/accuracy"])


def test_other_fields_are_scheduled_too(train: Train) -> None:
    folder = train(*DIGITS, "duration=4", "log_every=1", "+scheduler@schedules.weight_decay=linear",
                   "+scheduler@schedules.betas.0=linear")  # fmt: skip
    logged = [row["optim/weight_decay"] for row in read(folder) if "optim/weight_decay" in row]
    assert logged == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    betas = [row["optim/betas.0"] for row in read(folder) if "optim/betas.0" in row]
    assert betas == pytest.approx([0.9, 0.675, 0.45, 0.225])


TASK = """
import torch
from hydrant.tasks import Classification

class Scaled(Classification):
    def __init__(self, model, *, label_smoothing, metrics):
        super().__init__(model, label_smoothing=label_smoothing, metrics=metrics)
        self.temperature = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, batch):
        if self.training:
            self.count += 1
        outcome = super().forward(batch)
        return outcome._replace(losses={"scaled": outcome.losses["cross_entropy"] * self.temperature.exp()})
"""


def test_what_is_the_task_s_own_resumes_too(
    train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "scaled_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(workdir)
    same_run = (*DIGITS, "task._target_=scaled_task.Scaled", "allow_targets=[scaled_task]", "duration=10")
    whole = train(*same_run, name="whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        train(*same_run, name="broken", status=130)
    broken = train(*same_run, name="broken")
    assert same(read(whole), read(broken))
    assert equal(checkpoint(whole, "training"), checkpoint(broken, "training"))
    assert float(checkpoint(whole, "training")["task"]["count"]) == 10


def test_a_finished_run_without_checkpoints_is_left_alone_too(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        train(*DIGITS, "duration=3", "save_every=null")
    assert "already finished" in capsys.readouterr().out
