"""Ranks that Hydrant starts: signals, a rank that dies, rejected configs, and the jobs of a sweep. Real processes."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_model import TWO_RANKS
from processes import command_line, descendants, wait_for, wait_for_row
from run_folders import assert_close_rows, assert_same_state, rows, summary, weights
from training_runs import command, run_command, train_in_child

from hydrant.runs import ranks
from hydrant.runs.folder import RunStatus
from hydrant.runs.job import RunResult

pytestmark = pytest.mark.usefixtures("without_gpu")  # more ranks than GPUs

WORDS = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=3", "save_every=3",
         "limit_val_samples=37", "micro_batch_size=16")  # fmt: skip
LONG = ("tracker=local", "model.hidden=[16]", "duration=240", "log_every=20", "eval_every=120", "save_every=40",
        *TWO_RANKS)  # fmt: skip


class RunningRanks:
    """A run of two ranks in child processes."""

    def __init__(self, workdir: Path, name: str, *words: str) -> None:
        self.folder = workdir / "outputs" / name
        self.log = workdir / f"{name}.txt"
        with self.log.open("w") as log:
            arguments = command(f"name={name}", *LONG, *words)
            self.process = subprocess.Popen(arguments, cwd=workdir, stdout=log, stderr=log)

    def ranks(self) -> dict[int, int]:
        """Return the pid of each rank."""
        pids: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"hydrant.runs.rank_main" in words and self._is_child(int(entry.name)):
                assert {b"WORLD_SIZE=2", b"LOCAL_WORLD_SIZE=2"} <= {*variables}
                pids[int(next(v for v in variables if v.startswith(b"RANK="))[5:])] = int(entry.name)
        return pids

    def wait(self) -> int:
        """Wait for the end of the run; return its exit status."""
        return self.process.wait(timeout=240)

    def kill(self) -> None:
        """Kill all processes that still run."""
        pids = self.ranks().values()
        self.process.kill()
        self.process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def last_line(self) -> str:
        return self.log.read_text().splitlines()[-1]

    def _is_child(self, pid: int) -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        return f"PPid:\t{self.process.pid}\n" in status


@pytest.fixture
def start(workdir: Path) -> Iterator[Callable[..., RunningRanks]]:
    """Start a run with these words in the folder `run`. It is killed at the end of the test."""
    runs: list[RunningRanks] = []

    def start(*words: str) -> RunningRanks:
        runs.append(RunningRanks(workdir, "run", *words))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run without any interruption."""
    return train_in_child(tmp_path_factory.mktemp("whole"), "whole", *LONG)


@pytest.mark.slow
def test_sigterm_saves_on_all_ranks_and_the_same_command_continues(
    whole: Path, workdir: Path, start: Callable[..., RunningRanks]
) -> None:
    run = start()
    wait_for_row(run.folder, 60, run.process)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert summary(run.folder)["status"] == "preempted"
    assert 60 <= summary(run.folder)["num_updates"] < 240
    train_in_child(workdir, "run", *LONG)
    assert rows(run.folder) == rows(whole)
    assert_same_state(weights(run.folder), weights(whole))


@pytest.mark.slow
def test_suspended_ranks_continue(whole: Path, start: Callable[..., RunningRanks]) -> None:
    """The time of the suspension does not count for the watchdog."""
    run = start("parallel.timeout_seconds=5")
    wait_for_row(run.folder, 60, run.process)
    pids = [run.process.pid, *run.ranks().values()]
    for signum in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, signum)
        if signum == signal.SIGSTOP:
            time.sleep(12)
    assert run.wait() == 0, run.last_line()
    assert rows(run.folder) == rows(whole)


def test_a_rank_that_is_stopped_while_it_starts_has_not_failed() -> None:
    """`hydrant stop` signals rank 0, which has the lock."""

    def result_of(*exit_codes: int, job: Any = None) -> RunResult | None:
        return ranks._stopped_result(job, [], {}, dict(enumerate(exit_codes)))

    assert result_of(-signal.SIGTERM) == RunResult.preempted(15, "stopped by SIGTERM before it started")
    assert result_of(-signal.SIGTERM, -signal.SIGKILL) is None


def test_a_hang_is_told_from_an_earlier_one_on_a_disk_with_another_clock(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(folder=tmp_path)
    ranks.mark(tmp_path, RunStatus.FAILED, {"type": "RankHung", "message": "hangs"})
    os.utime(tmp_path / "summary.json", (1000.0, 1000.0))
    hangs = [ranks._hang_result(job, earlier) for earlier in (0.0, 1000.0)]
    assert [hang and hang.error_type for hang in hangs] == ["RankHung", None]


def test_an_error_of_another_rank_is_written_as_rank_0_would_write_it(tmp_path: Path) -> None:
    """Here rank 0 ended before it could; the message on stderr has also the place of the error."""
    job: Any = SimpleNamespace(folder=tmp_path)
    result = RunResult.from_error(ValueError("boom"), "ValueError: boom (at net.py:3)")
    reported: Any = ranks._reported_result(job, {1: result}, {0: -signal.SIGTERM, 1: 1})
    assert reported.message == "rank 1: ValueError: boom (at net.py:3)"
    assert summary(tmp_path)["error"] == {"type": "ValueError", "message": "rank 1: boom"}
    (tmp_path / "stderr-1.log").touch()
    died = ranks._death({1: -signal.SIGSEGV}, {1: RunResult.finished()}, tmp_path)  # after its end
    assert died == RunResult.failed("rank 1 was killed by SIGSEGV", "RankDied")


@pytest.mark.slow
def test_a_signal_before_the_run_starts_leaves_nothing(workdir: Path) -> None:
    process = subprocess.Popen(command("name=run", *LONG), cwd=workdir, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any("rank_main" in command_line(pid) for pid in descendants(process.pid)), process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr) == (143, "stopped by SIGTERM before it started\n")
    assert not (workdir / "outputs" / "run" / "summary.json").exists()


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_is_named(whole: Path, start: Callable[..., RunningRanks]) -> None:
    run = start()
    wait_for_row(run.folder, 100, run.process)
    ranks = run.ranks()
    os.kill(ranks[1], signal.SIGKILL)
    assert run.wait() == 1
    assert run.last_line().startswith("error: rank 1 was killed by SIGKILL, usually because the memory")
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    assert summary(run.folder)["status"] == "failed"
    assert summary(run.folder)["error"]["type"] == "RankDied"
    again = start("parallel.max_restarts=1")
    wait_for_row(again.folder, 180, again.process)
    os.kill(again.ranks()[0], signal.SIGKILL)
    assert again.wait() == 0  # restarted from the last checkpoint
    assert rows(run.folder) == rows(whole)
    assert_same_state(weights(run.folder), weights(whole))


@pytest.mark.slow
def test_all_ranks_reject_a_wrong_config(workdir: Path) -> None:
    done = run_command(*WORDS, *TWO_RANKS, "global_batch_size=63", cwd=workdir)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: global_batch_size: 63 is not divisible by 2 ranks")
    done = run_command(*WORDS, "parallel=single", *TWO_RANKS, cwd=workdir)
    assert done.returncode == 2
    assert "use parallel=ddp" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_every_job_of_a_sweep_starts_its_ranks(workdir: Path) -> None:
    done = run_command("--multirun", "name=sweep", *WORDS, *TWO_RANKS, "seed=0,1", cwd=workdir)
    assert done.returncode == 0, done.stderr
    for seed in (0, 1):
        one = train_in_child(workdir, f"one_{seed}", *WORDS, f"seed={seed}")
        (job,) = [f.parent for f in (workdir / "multirun/sweep").glob("*/config.yaml")
                  if f"\nseed: {seed}\n" in f.read_text()]  # fmt: skip
        assert_close_rows(one, job)
