"""Durations in seconds: updates are timed once, before the run, whose horizon then stays the same."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from ranks import run_on_ranks
from run_folders import assert_same_state, rows, saved, summary, training
from training_runs import DIGITS, Train, UserModule, whole_and_resumed

from hydrant import cli
from hydrant.runs import execute
from hydrant.training.prepare import micro_batch
from hydrant.training.trainer import Plan, Trainer

PACE = 0.01  # seconds of an update, as the fixture `timed` measures them


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Replace the measurement by a constant; return the batch sizes of every call."""
    calls: list[list[int]] = []

    def time_updates(plan: Plan, sizes: Sequence[int]) -> dict[int, float]:
        calls.append(list(sizes))
        return {size: PACE * size / 32 for size in sizes}

    monkeypatch.setattr(execute, "time_updates", time_updates)
    return calls


@pytest.fixture
def short_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "_MIN_SECONDS", 0.02)


@pytest.mark.usefixtures("short_trial")
def test_a_timed_run_equals_one_of_as_many_updates(train: Train) -> None:
    """What the measurement does leaves no trace in the run."""
    words = (*DIGITS, "model.dropout=0.1", "scheduler.warmup=10%", "eval_every=50%", "save_every=50%")
    folder = train(*words, "duration=0.05s", name="timed")
    total, state = summary(folder)["total_updates"], training(folder)["state"]
    assert total == max(round(0.05 / state["update_seconds"]["32"]), 1)
    counted = train(*words, f"duration={total}", name="counted")
    assert rows(folder) == rows(counted)
    assert_same_state(saved(folder, "model"), saved(counted, "model"))


def test_a_resumed_run_keeps_its_horizon(
    timed: list[list[int]], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*DIGITS, "duration=0.12s", "scheduler.warmup=0.02s", "eval_every=0.05s", "log_every=1")
    whole, half = whole_and_resumed(train, monkeypatch, words, stop_at=6)
    assert timed == [[32], [32]]  # one for each of the two runs
    assert [row["num_updates"] for row in rows(whole) if "val/loss" in row] == [0, 5, 10, 12]
    assert rows(whole) == rows(half)
    assert_same_state(saved(whole, "training"), saved(half, "training"))
    folder = train(*words, "duration=0.15s", "resume_strict=false", name="half")
    assert (len(timed), summary(folder)["num_updates"]) == (2, 15)


def test_each_batch_size_has_its_own_seconds(timed: list[list[int]], train: Train) -> None:
    folder = train(*DIGITS, "global_batch_size={0: 32, 4: 64}", "duration=0.1s", "eval_every=null")
    assert timed == [[32, 64]]
    assert summary(folder)["total_updates"] == 4 + 3  # 4 of 0.01 s and 3 of 0.02 s
    folder = train(*DIGITS, "global_batch_size={0: 32, 4: 64, 7: 96}", "duration=0.2s", "eval_every=null",
                   "resume_strict=false")  # fmt: skip
    assert timed[1:] == [[96]]


@pytest.mark.slow
def test_intervals_in_seconds_need_the_time_of_an_update_too(timed: list[list[int]], train: Train) -> None:
    folder = train(*DIGITS, "duration=9", "eval_every=0.04s", "averaging=ema", "averaging.start_after=0.02s")
    assert timed == [[32]]
    assert [row["num_updates"] for row in rows(folder) if "val/loss" in row] == [0, 4, 8, 9]
    train(*DIGITS, "duration=9", "eval_every=5sa", name="other")
    assert len(timed) == 1


@pytest.mark.usefixtures("short_trial")
def test_each_batch_size_is_timed_in_its_own_updates(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, train_update = list[int](), micro_batch.train_update

    def recorded(trainer: Trainer, **options: bool) -> None:
        tried.append(trainer.state.num_updates)
        train_update(trainer, **options)

    monkeypatch.setattr(micro_batch, "train_update", recorded)
    train(*DIGITS, "global_batch_size={0: 32, 4: 64}", "duration=0.1s", "log_every=3", "eval_every=null")
    assert ({*tried[:50]}, min(tried[-50:]) >= 4) == ({0, 1, 2, 3}, True)


def test_preview_measures_nothing_and_says_so(
    timed: list[list[int]], workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["preview", *DIGITS, "duration=5min", "scheduler.warmup=30s"]) == 0
    shown = capsys.readouterr().out
    assert "horizon      not known: the run first measures how long an update takes; assumed here:" in shown
    assert "updates      10,000 of 32 samples" in shown
    assert timed == []


@pytest.mark.extension
def test_a_stream_whose_batches_grow_is_refused(
    train: Train, capsys: pytest.CaptureFixture[str], user_module: UserModule
) -> None:
    user_module(
        "endless",
        "import torch\n\nclass Items:\n    def __iter__(self):\n        return iter([(torch.zeros(1), 0)] * 18)\n",
    )
    data = "{_target_: hydrant.extensions.streams.stream, train: {_target_: endless.Items}, "
    data += "val: {_target_: endless.Items}, num_samples: 18, num_val_samples: 4, input_shape: [1], "
    data += "num_classes: 2, num_workers: 0, test: null, extra_val: {}, target: null, collate: null, divided: false}"
    train("tracker=local", "~data", f"+data={data}", "allow_targets=[endless]", "duration=1s",
          "global_batch_size={0: 2, 3: 4}", status=2)  # fmt: skip
    assert (
        "global_batch_size: seconds need the time of each batch size, but a stream" in capsys.readouterr().err
    )


@pytest.mark.usefixtures("short_trial")
def test_a_block_of_updates_is_timed_as_a_whole(monkeypatch: pytest.MonkeyPatch, train: Train) -> None:
    """The measurement makes updates of 0.125 s of a clock of its own, and finds just that."""
    clock = itertools.count()
    now = [0.0]

    def train_update(trainer: object, *, is_last: bool) -> None:
        now[0] += 0.125
        next(clock)

    monkeypatch.setattr(micro_batch, "train_update", train_update)
    monkeypatch.setattr(micro_batch.time, "perf_counter", lambda: now[0])
    folder = train(*DIGITS, "duration=1s")
    assert summary(folder)["total_updates"] == 8
    assert next(clock) == micro_batch._NUM_WARMUP * (1 + micro_batch._NUM_BLOCKS)


@pytest.mark.extension
@pytest.mark.slow
@pytest.mark.usefixtures("short_trial")
def test_a_compiled_run_is_timed_compiled(train: Train) -> None:
    folder = train(*DIGITS, "duration=0.2s", "compile=default")
    assert summary(folder)["compile"]["recompiles"] == 0
    assert (
        summary(folder)["compile"]["graphs"]
        == summary(train(*DIGITS, "duration=4", "compile=default", name="b"))["compile"]["graphs"]
    )


@pytest.mark.slow
def test_ranks_agree_about_the_horizon(workdir: Path) -> None:
    run_on_ranks(2, workdir, [("train", "name=two", *DIGITS, "duration=1s", "micro_batch_size=16")])
    folder = workdir / "outputs" / "two"
    assert summary(folder)["status"] == "finished"
    assert summary(folder)["num_updates"] == round(1 / training(folder)["state"]["update_seconds"]["32"])
