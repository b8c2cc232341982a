"""Runs that train as lanes of a stack: each leaves what it leaves alone, and ends alone."""

import resource
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from marks import slow
from run_folders import assert_close_rows, assert_same_state, rows, saved_updates, summary, training, weights
from tiny_runs import tiny_job
from torch import Tensor

from hydrant.clock import Due
from hydrant.extensions.stacked.runs import execute_stack
from hydrant.extensions.stacked.stack import Stack
from hydrant.runs.execute import execute
from hydrant.runs.job import Job, RunResult
from hydrant.runs.lock import exclusive, is_held
from hydrant.training import loop
from hydrant.training.trainer import Trainer

SEEDS = ("seed=0", "seed=1", "seed=2")


def jobs_in(folder: Path, *words: str) -> list[Job]:
    """Return tiny jobs that differ in one override, in folders named after it."""
    return [tiny_job(folder / word, word) for word in words]


def run(jobs: Sequence[Job]) -> list[RunResult]:
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
    return execute_stack(jobs)


def run_alone(folder: Path, word: str) -> Path:
    (job,) = jobs_in(folder, word)
    job.folder.mkdir(parents=True)
    execute(job)
    return job.folder


def signal_at(patch: pytest.MonkeyPatch, num_updates: int, *signals: int) -> None:
    """Let this process receive signals while a stack makes update `num_updates`."""
    update = Stack.update

    def interrupted(stack: Stack, *, measure: bool, show_gradients: bool = False) -> dict[str, Tensor]:
        if stack.lanes[0].state.num_updates + 1 == num_updates:
            for signum in signals:
                signal.raise_signal(signum)
        return update(stack, measure=measure, show_gradients=show_gradients)

    patch.setattr(Stack, "update", interrupted)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_equal_runs(one: Path, other: Path) -> None:
    """Assert that two runs of the same lane are equal bit for bit."""
    assert rows(one) == rows(other)
    assert_same_state(weights(one), weights(other))
    assert_same_state(training(one), training(other))
    assert files(one) == files(other)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stack of three runs that nothing has stopped."""
    folder = tmp_path_factory.mktemp("whole")
    assert [result.exit_status for result in run(jobs_in(folder, *SEEDS))] == [0, 0, 0]
    return folder


def test_a_lane_leaves_what_its_run_leaves_alone(whole: Path, tmp_path: Path) -> None:
    for seed in SEEDS[:2]:
        alone = run_alone(tmp_path, seed)
        assert files(whole / seed) == files(alone)
        assert_close_rows(whole / seed, alone)
        keys = ("status", "num_updates", "total_updates", "num_parameters", "error")
        assert [summary(whole / seed)[key] for key in keys] == [summary(alone)[key] for key in keys]
        assert (whole / seed / "config.yaml").read_text() == (alone / "config.yaml").read_text()


def test_lanes_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    limits, num_open = resource.getrlimit(resource.RLIMIT_NOFILE), len([*Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 8, limits[1]))
    try:
        results = run(jobs_in(tmp_path, *(f"seed={seed}" for seed in range(6))))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [(result.exit_status, result.message) for result in results] == [(0, "")] * 6


def test_the_log_of_a_lane_has_its_messages_alone(whole: Path) -> None:
    for seed in SEEDS:
        lines = (whole / seed / "train.log").read_text()
        assert lines.count("finished: 4 updates") == 1
        assert not any(other in lines for other in SEEDS if other != seed)


def test_a_lane_that_diverges_ends_alone(tmp_path: Path) -> None:
    good, bad = jobs_in(tmp_path, "optimizer.lr=0.01", "optimizer.lr=1e30")
    finished, failed = run([good, bad])
    assert (finished.exit_status, failed.exit_status) == (0, 1)
    assert "became NaN or infinite" in failed.message
    assert (summary(good.folder)["status"], summary(bad.folder)["status"]) == ("finished", "failed")
    assert "became NaN or infinite" in summary(bad.folder)["error"]["message"]
    assert "NaN" not in (good.folder / "train.log").read_text()
    assert_close_rows(good.folder, run_alone(tmp_path / "alone", "optimizer.lr=0.01"))


def test_a_lane_that_has_ended_gives_up_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = jobs_in(tmp_path, "optimizer.lr=0.01", "optimizer.lr=1e30")
    held = dict[int, list[bool]]()
    update = Stack.update

    def observed(stack: Stack, *, measure: bool, show_gradients: bool = False) -> dict[str, Tensor]:
        held[stack.lanes[0].state.num_updates] = [is_held(job.folder) for job in (good, bad)]
        return update(stack, measure=measure, show_gradients=show_gradients)

    monkeypatch.setattr(Stack, "update", observed)
    run([good, bad])
    assert held[0] == [True, True]
    assert held[3] == [True, False]
    assert not is_held(good.folder)
    assert not (good.folder / ".lease").exists()


@pytest.mark.parametrize(
    ("words", "failing_after", "asked"),
    # Lanes are asked before an update after which one of them has something to do.
    [((), 2, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]), (("log_every=4",), 1, [1, 1, 1, 2, 2, 3, 3])],
    ids=["logged", "not logged"],
)
def test_a_lane_that_fails_before_an_update_changes_no_other(
    words: Sequence[str],
    failing_after: int,
    asked: Sequence[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [tiny_job(tmp_path / "failing" / seed, *words, seed) for seed in SEEDS]
    whole = [tiny_job(tmp_path / "whole" / seed, *words, seed) for seed in SEEDS]
    run(whole)
    begin_update, begun = loop.begin_update, list[int]()

    def failing(trainer: Trainer, *, is_last: bool) -> Due:
        begun.append(trainer.state.num_updates)
        if trainer.plan.config["seed"] == 1 and trainer.state.num_updates == failing_after:
            raise ValueError("a hook failed")
        return begin_update(trainer, is_last=is_last)

    monkeypatch.setattr(loop, "begin_update", failing)
    assert [result.exit_status for result in run(jobs)] == [0, 1, 0]
    assert begun == asked
    for job, same in ((jobs[0], whole[0]), (jobs[2], whole[2])):
        assert_equal_runs(job.folder, same.folder)


@pytest.mark.parametrize(
    ("at", "signals", "saved"),
    [(3, [signal.SIGINT], 3), *slow((3, [signal.SIGTERM], 3), (4, [signal.SIGINT, signal.SIGINT], 2))],
    ids=["SIGINT", "SIGTERM", "a second Ctrl-C, which saves nothing"],
)
def test_a_signal_saves_all_lanes_and_they_continue(
    at: int,
    signals: list[signal.Signals],
    saved: int,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = jobs_in(tmp_path, *SEEDS)
    with monkeypatch.context() as patch:
        signal_at(patch, at, *signals)
        stopped = run(jobs)
    assert [result.exit_status for result in stopped] == [128 + signals[0]] * 3
    assert [summary(job.folder)["status"] for job in jobs] == ["preempted"] * 3
    assert not any(is_held(job.folder) for job in jobs)
    assert [saved_updates(job.folder / "checkpoints")[-1] for job in jobs] == [saved] * 3
    assert [result.exit_status for result in run(jobs)] == [0] * 3
    for seed in SEEDS:
        assert_equal_runs(tmp_path / seed, whole / seed)


def test_lanes_at_different_updates_continue_together(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is finished, one is at update 3, one has not begun; then each may also continue alone."""
    jobs = jobs_in(tmp_path, *SEEDS)
    assert [result.exit_status for result in run(jobs[:1])] == [0]
    with monkeypatch.context() as patch:
        signal_at(patch, 3, signal.SIGTERM)
        run([jobs[1], *jobs_in(tmp_path, "seed=3")])
    assert [result.exit_status for result in run(jobs)] == [0] * 3
    for seed in SEEDS:
        assert_close_rows(tmp_path / seed, whole / seed)
    assert execute(tiny_job(tmp_path / "seed=3", "seed=3")).exit_status == 0
    assert_close_rows(tmp_path / "seed=3", run_alone(tmp_path / "alone", "seed=3"))


def test_a_lane_whose_folder_is_in_use_is_left_out(whole: Path, tmp_path: Path) -> None:
    jobs = jobs_in(tmp_path, *SEEDS)
    with exclusive(jobs[1].folder):
        results = run(jobs)
    assert [result.exit_status for result in results] == [0, 2, 0]
    assert results[1].error_type == "FolderInUse"
    assert not (jobs[1].folder / "summary.json").exists()
    assert rows(jobs[0].folder) == rows(whole / SEEDS[0])


def test_a_lane_that_its_tracker_refuses_is_left_out(workdir: Path) -> None:
    words = ("tracker=wandb", "tracker.mode=offline")
    jobs = [tiny_job(workdir / f"{n}", *words, f"seed={n}") for n in range(3)]
    refused = tiny_job(workdir / "1", *words, "seed=1", "tracker.project='a/b'")
    results = run([jobs[0], refused, jobs[2]])
    assert [result.exit_status for result in results] == [0, 2, 0]
    assert "tracker.project" in results[1].message
    ids = {summary(job.folder)["wandb"]["id"] for job in (jobs[0], jobs[2])}
    assert len(ids) == 2
    assert not (refused.folder / "summary.json").exists()


@pytest.mark.slow
def test_a_lane_ends_early_by_patience_alone(tmp_path: Path) -> None:
    words = ("duration=40", "optimizer.lr=0.1")
    impatient, patient = (tiny_job(tmp_path / f"{n}", *words, f"patience={n}") for n in (2, 1000))
    assert [result.exit_status for result in run([impatient, patient])] == [0, 0]
    assert summary(impatient.folder)["num_updates"] < summary(patient.folder)["num_updates"] == 40
    alone = tiny_job(tmp_path / "alone", *words, "patience=2")
    run([alone])
    assert_close_rows(impatient.folder, alone.folder)
