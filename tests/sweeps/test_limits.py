"""A sweep ends at its limits, and continues with larger ones."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from answers import check

from hydrant import cli
from hydrant.runs.lock import shared
from hydrant.sweeps.fork_server.call import SignalForwarding
from hydrant.sweeps.grid import GridSweeper
from hydrant.sweeps.plan import SweepFiles, usable_plan
from hydrant.sweeps.sweep import RunningSweep

TINY = ("tracker=local", "model.hidden=[4]", "limit_val_samples=32", "eval_every=null")

Sweeping = Callable[..., dict[str, Any]]


@pytest.fixture
def sweep(workdir: Path, capsys: pytest.CaptureFixture[str]) -> Sweeping:
    """`sweep(*words)`: sweep with --json, and return its answer."""

    def run(*words: str) -> dict[str, Any]:
        assert cli.main(["train", "-m", "--json", "name=sweep", *TINY, *words]) == 0
        return check(capsys.readouterr().out)

    return run


def test_max_runs_counts_the_runs_of_all_starts(sweep: Sweeping) -> None:
    words = ("seed=0,1,2", "duration=2")
    first = sweep(*words, "hydra.sweeper.max_runs=1")
    assert first["states"] == {"finished": 1, "not started": 2}
    assert first["ended_by"] == "hydra.sweeper.max_runs=1"
    assert first["processor_seconds"] > 0
    assert first["wall_seconds"] > 0
    assert sweep(*words, "hydra.sweeper.max_runs=1")["states"] == first["states"]
    last = sweep(*words, "hydra.sweeper.max_runs=3")
    assert (last["states"], last["ended_by"]) == ({"finished": 3}, "")
    other = sweep("seed=3", "duration=2", "hydra.sweeper.max_runs=3")  # of another grid
    assert other["states"] == {"finished": 3, "not started": 1}


class Counted(SweepFiles):
    """The files of a sweep that says what it has used."""

    used = 0.0
    wall_seconds = property(lambda self: self.used)  # type: ignore[assignment]
    processor_seconds = property(lambda self: 2 * self.used)  # type: ignore[assignment]


def use_seconds(folder: str, damage: str = "") -> None:
    sweep, files = RunningSweep(Path(folder)), Counted(Path(folder))
    sweep.files = files
    with sweep.active({}):
        for second in range(1, 101):
            files.used = float(second)
            files.write_plan()
            if damage:
                (Path(folder) / "sweep.json").write_text(damage)
        files.write_plan()


@pytest.mark.slow
def test_two_sweeps_at_once_in_one_folder_count_the_seconds_of_both(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}; import test_limits; print(); "
    code += f"input(); test_limits.use_seconds({str(tmp_path)!r})"
    other = subprocess.Popen([sys.executable, "-c", code], text=True, stdin=PIPE, stdout=PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdout.readline()  # it is ready
    other.stdin.write("\n")
    other.stdin.flush()
    use_seconds(str(tmp_path))
    other.communicate()
    plan = usable_plan(tmp_path)[0]
    assert (other.returncode, plan.wall_seconds, plan.processor_seconds) == (0, 200.0, 400.0)
    use_seconds(str(tmp_path), damage="{")
    assert usable_plan(tmp_path)[0].wall_seconds == 300.0


def test_two_sweeps_at_once_in_one_folder_plan_the_jobs_of_both(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep whose command has ended plans nothing any more."""
    monkeypatch.setattr(GridSweeper, "_run_batch", lambda self, *batch: "")
    monkeypatch.setattr(GridSweeper, "_find_faults", lambda self, jobs: [])
    other = RunningSweep(folder := Path("multirun/sweep"))

    def plan(*words: str) -> list[str]:
        assert cli.main(["train", "-m", "name=sweep", *TINY, *words]) == 0
        return planned()

    def planned() -> list[str]:
        return [" ".join(job.overrides[-1:]) for job in usable_plan(folder)[0].jobs]

    with shared(folder), other.active({folder.resolve() / "a": ["seed=7"]}):
        assert plan("seed=0,1") == ["seed=7", "seed=0", "seed=1"]
        assert "; 1 of another command, which is at work, wait" in capsys.readouterr().out
        other.files.write_plan()
        assert planned() == ["seed=7", "seed=0", "seed=1"]
    assert plan("seed=1") == ["seed=1"]
    assert "; 2 that never began are left out" in capsys.readouterr().out


@pytest.mark.slow
def test_max_seconds_lets_the_jobs_save_and_starts_no_other(sweep: Sweeping) -> None:
    """The time that a machine needs to start a job is not known here: the limit may come before or while it trains."""
    ended = sweep("seed=0,1", "duration=100000000", "hydra.sweeper.max_seconds=3")
    assert ended["ended_by"] == "hydra.sweeper.max_seconds=3"
    assert ended["states"].get("not started", 0) >= 1
    assert ended["states"].keys() <= {"preempted", "not started"}


def test_a_limit_that_is_over_stops_at_once_and_one_that_is_not_does_nothing() -> None:
    for seconds, signum in ((0.0, signal.SIGTERM), (3600.0, None), (None, None)):
        limited, signals = RunningSweep(Path()), SignalForwarding()
        limited.rules.max_seconds = seconds
        with limited.limited(signals):
            for _ in range(500 if signum else 1):
                if signals.signum == signum:
                    break
                time.sleep(0.01)
        assert (signals.signum, limited.answer.is_out_of_time) == (signum, signum is not None)


def test_a_failure_counts_although_clock_is_set_back(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the failed job writes is older than the start of its sweep then; durations are of another clock."""
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 1e6)
    limited = RunningSweep(Path("multirun/sweep"))
    limited.rules.max_seconds = 3600.0
    grid = ("train", "-m", "name=sweep", *TINY, "seed=0", "duration=1", "optimizer=sgd", "optimizer.lr=1e30")
    with monkeypatch.context() as begun:
        begun.setattr("hydrant.sweeps.sweep.RunningSweep", lambda _: limited)
        begun.setattr("time.time", now)
        assert cli.main(grid) == 1
    assert 0 < limited.files.wall_seconds < 600


@pytest.mark.parametrize("limit", ["max_runs=0", "max_runs=1.5", "max_seconds=-1", "max_seconds=soon"])
def test_an_impossible_limit_is_refused(
    limit: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "-m", *TINY, "seed=0,1", f"hydra.sweeper.{limit}"]) == 2
    assert f"hydra.sweeper.{limit.partition('=')[0]}" in capsys.readouterr().err
