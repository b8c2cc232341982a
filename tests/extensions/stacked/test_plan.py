"""Sweeps whose jobs train in stacks: the same runs, files and messages as with one process for each job."""

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401
from processes import descendants, fork
from run_folders import assert_close_rows, rows, summary
from sweeps import sweep_table
from tiny_runs import sweep, tiny_job
from training_runs import DIGITS

from hydrant import cli
from hydrant.config.groups import group_options
from hydrant.errors import ConfigError
from hydrant.extensions.stacked import ONLY_ONE, Lanes, describe
from hydrant.extensions.stacked import runs as _  # noqa: F401
from hydrant.files.on_disk import write_json
from hydrant.files.plain_values import check_value
from hydrant.runs.folder import RunFolder
from hydrant.safety.targets import preload
from hydrant.sweeps.executors import base
from hydrant.sweeps.executors.base import SweepJob, Unit
from hydrant.sweeps.fork_server.call import CallResult, ProcessDied
from hydrant.sweeps.preflight import program_of

for _path in Unit.paths_to_preload([]):
    preload(_path)
# What is imported here is not imported again by the processes of each sweep, which are forks of this one.
STACKED = ("hydra/launcher=stacked", "hydra.launcher.executor.num_jobs=1")
LOCAL = ("hydra/launcher=local", "hydra.launcher.num_jobs=2")
SEEDS = ("seed=0,1,2,3", "hydra.sweep.subdir=seed-${seed}")


def run_sweep(workdir: Path, *words: str) -> int:
    """Run a sweep of tiny runs in a fork of this process; return its exit status."""
    pid = fork(lambda: sweep(workdir, words))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def statuses(study: Path) -> list[str]:
    return [row["status"] for row in sweep_table(study)]


def comparable_table(study: Path) -> list[dict[str, str]]:
    """Return sweep.csv without what depends on the clock or on rounding."""
    exact = ("run", "optimizer", "seed", "status", "num_updates", "best_num_updates", "error")
    return [{key: row[key] for key in exact} for row in sweep_table(study)]


@pytest.mark.slow
def test_a_mixed_sweep_is_planned_and_leaves_what_it_leaves_alone(
    workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    subdir = "hydra.sweep.subdir=${hydra:runtime.choices.optimizer}-${seed}"
    words = ("optimizer=sgd,adamw,lbfgs", "seed=0,1", subdir)
    assert run_sweep(workdir, *STACKED, *words, "name=stacked") == 0
    output = capfd.readouterr().out
    assert output.startswith(
        "multirun/stacked: 6 jobs: 6 new\n"
        "2 stacks of 2, 2 lanes; 2 jobs alone\n"
        "  jobs 4-5 alone: its optimizer evaluates the loss itself (optimizer); "
        "hydra/launcher=local trains all jobs alone\n"
        "jobs 0-1: a stack of 2 lanes\n"
    )
    assert output.count(" has finished: val/") == 6
    assert run_sweep(workdir, *LOCAL, *words, "name=alone") == 0
    stacked, alone = workdir / "multirun" / "stacked", workdir / "multirun" / "alone"
    assert comparable_table(stacked) == comparable_table(alone)
    for row in sweep_table(stacked):
        assert_close_rows(stacked / row["run"], alone / row["run"], abs=1e-5)
    capfd.readouterr()
    assert run_sweep(workdir, *LOCAL, *words, "name=stacked") == 0
    assert capfd.readouterr().out.count("already finished") == 6
    assert cli.main(["compare", "multirun/stacked", "multirun/alone", "--metric", "val/loss"]) == 0
    compared = capfd.readouterr()
    assert "warning" not in compared.err.lower()


def test_a_lane_that_fails_is_in_the_table_alone(workdir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("optimizer.lr=0.01,1e30,0.1", "name=study")
    assert run_sweep(workdir, *STACKED, *words) == 1
    printed = capfd.readouterr()
    assert "job 1: error: " in printed.err
    assert "became NaN or infinite" in printed.err
    assert "job 0: error" not in printed.err
    assert statuses(workdir / "multirun" / "study") == ["finished", "failed", "finished"]
    assert "became NaN or infinite" in sweep_table(workdir / "multirun" / "study")[1]["error"]


def stop_when_begun(
    workdir: Path, study: Path, words: tuple[str, ...], signum: int, *, at_stack: bool
) -> int:
    """Start a sweep that never ends by itself, and send a signal when all lanes have saved; return its exit status."""
    pid = fork(lambda: sweep(workdir, words))
    deadline = time.monotonic() + 120
    while len(list(study.glob("*/checkpoints/last"))) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(max(descendants(pid)) if at_stack else pid, signum)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


LONG = (
    "duration=4000",
    "log_every=500",
    "eval_every=1000",
    "save_every=20",
    "histogram_every=null",
    "averaging=none",
)
"""Overrides of runs that last some seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [STACKED, LOCAL], ids=["stacked", "local"])
@pytest.mark.parametrize(
    ("signum", "at_stack"), [(signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGINT, False)]
)
def test_a_stopped_stack_continues_with_any_launcher(
    launcher: tuple[str, ...], signum: int, at_stack: bool, workdir: Path
) -> None:
    """The process of the stack, or that of the sweep, is killed; or Ctrl-C stops both."""
    study = workdir / "multirun" / "study"
    words = (*LONG, *SEEDS, "name=study")
    status = stop_when_begun(workdir, study, (*STACKED, *words), signum, at_stack=at_stack)
    assert status == (1 if at_stack else 130 if signum == signal.SIGINT else -signum)
    if signum == signal.SIGINT:
        assert statuses(study) == ["preempted"] * 4
    if at_stack:
        assert statuses(study) == ["failed"] * 4
        assert all("SIGKILL" in row["error"] for row in sweep_table(study))
    assert run_sweep(workdir, *launcher, *words) == 0
    assert statuses(study) == ["finished"] * 4
    assert [summary(study / f"seed-{n}")["num_updates"] for n in range(4)] == [4000] * 4
    assert all("continuing from" in (study / f"seed-{n}" / "train.log").read_text() for n in range(4))


@pytest.mark.slow
def test_a_sweep_begun_alone_is_finished_by_a_stack(workdir: Path) -> None:
    study, words = workdir / "multirun" / "study", (*LONG, *SEEDS, "name=study")
    assert stop_when_begun(workdir, study, ("hydra/launcher=local", "hydra.launcher.num_jobs=4", *words),
                           signal.SIGTERM, at_stack=False) == 143  # fmt: skip
    assert run_sweep(workdir, *STACKED, *words) == 0
    assert statuses(study) == ["finished"] * 4


@pytest.mark.slow
def test_trials_of_optuna_that_are_drawn_together_are_a_stack(
    workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=5", "hydra.sweeper.n_jobs=3", "name=search",
             "hydra/sweeper/pruner=median", "optimizer.lr=tag(log, interval(1e-3, 1e-1))")  # fmt: skip
    assert run_sweep(workdir, *STACKED, *words) == 0
    output = capfd.readouterr().out
    assert "1 stack of 3 lanes\njobs 0-2: a stack of 3 lanes\n" in output
    assert "1 stack of 2 lanes\njobs 3-4: a stack of 2 lanes\n" in output
    assert set(statuses(workdir / "multirun" / "search")) <= {"finished", "pruned"}
    assert len(statuses(workdir / "multirun" / "search")) == 5
    assert run_sweep(workdir, *STACKED, *words) == 0
    assert "5 of 5 trials are finished" in capfd.readouterr().out


@pytest.mark.slow
def test_the_seeds_of_a_study_are_stacks(workdir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("hydra/sweeper=study", "optimizer.lr=0.1,1e-6", "hydra.sweeper.seeds=4", "name=study")
    assert run_sweep(workdir, *STACKED, *words) == 0
    assert "jobs 0-7: a stack of 8 lanes" in capfd.readouterr().out
    assert statuses(workdir / "multirun" / "study") == ["finished"] * 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "setting"), [("local", "num_jobs=2"), ("ray", "num_cpus=0.5"), ("slurm", "cluster=local")]
)
def test_every_launcher_trains_stacks(
    option: str, setting: str, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if option not in group_options()["hydra/launcher"]:
        pytest.skip("it is not installed")
    words = (f"hydra/launcher@hydra.launcher.executor={option}", f"hydra.launcher.executor.{setting}")
    assert run_sweep(workdir, STACKED[0], *words, "hydra.launcher.lanes=2", *SEEDS, "name=study") == 0
    assert "2 stacks of 2, 2 lanes" in capfd.readouterr().out
    assert statuses(workdir / "multirun" / "study") == ["finished"] * 4


HOPELESS = (*DIGITS, "duration=20", "log_every=4", "eval_every=4", "optimizer=sgd", "hook=stop_if",
            "hooks.stop_if.rule='val/loss > 2.2 after 6'")  # fmt: skip


@pytest.mark.slow
def test_lanes_that_are_hopeless_are_stopped_and_the_others_finish(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "-m", "name=sweep", "hydra/launcher=stacked", "optimizer.lr=1e-6,0.5", *HOPELESS]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "stack" in printed
    hopeless, good = (next(workdir.glob(f"multirun/sweep/lr-{lr}*")) for lr in ("1e-06", "0.5"))
    assert (RunFolder(hopeless).status, RunFolder(good).status) == ("stopped", "finished"), printed
    assert summary(hopeless)["num_updates"] == 8, "the first evaluation after 6 updates"
    assert summary(hopeless)["end_reason"].startswith("stop_if: val/loss 2.")
    assert rows(good)[-1]["num_updates"] == 20
    assert cli.main(["compare", "multirun/sweep", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["states"] == {"stopped": 1, "finished": 1}
    assert compared["verdict"]["status"] == "undecided"
    assert [group["num"] for group in compared["groups"]] == [1, 0]
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["states"] == {"stopped": 1, "finished": 1}
    assert summary(hopeless)["num_updates"] == 8


def config(**changes: Any) -> Mapping[str, Any]:
    return {"seed": 0, "optimizer": {"lr": 0.1, "nesterov": False}, "global_batch_size": 8} | changes


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"seed": 1, "name": "x", "patience": 3}, True),
        ({"optimizer": {"lr": 0.3, "nesterov": False}}, True),
        ({"optimizer": {"lr": 0.1, "nesterov": True}}, False),
        ({"global_batch_size": 16}, False),
    ],
)
def test_jobs_of_the_same_program_differ_in_numbers_alone(changes: Mapping[str, Any], is_same: bool) -> None:
    assert (program_of(config()) == program_of(config(**changes))) == is_same


def test_a_plan_names_jobs_by_their_numbers_in_the_sweep() -> None:
    reasons = {10: None, 11: None, 12: ONLY_ONE, 20: "why (key)", 21: "why (key)"}
    assert describe([[10, 11], [12], [20], [21]], reasons) == [
        "1 stack of 2 lanes; 3 jobs alone",
        f"  job 12 alone: {ONLY_ONE}",
        "  jobs 20-21 alone: why (key); hydra/launcher=local trains all jobs alone",
    ]
    assert describe([], {}) == []


@pytest.mark.parametrize("lanes", [0, -1, 1.5, "many", True, None])
def test_other_numbers_of_lanes_are_refused(lanes: Any) -> None:
    with pytest.raises(ConfigError, match=r"hydra\.launcher\.lanes"):
        check_value("hydra.launcher.lanes", Lanes, lanes)


def test_the_results_of_a_stack_whose_process_died_are_in_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane that had ended keeps its result; what an earlier start recorded does not count."""
    recorded = {
        "finished": {"status": "finished"},
        "diverged": {"status": "failed", "error": {"type": "E", "message": "NaN"}},
        "failed before": {"status": "failed", "error": {"type": "E", "message": "old"}},
        "at work": {"status": "running"},
        "not begun": None,
    }
    for name, content in recorded.items():
        (tmp_path / name).mkdir()
        if content is not None:
            write_json(tmp_path / name / "summary.json", {"num_updates": 4} | content)
    before = (tmp_path / "failed before" / "summary.json").stat().st_mtime
    monkeypatch.setattr(base, "call_isolated", lambda *ignored: CallResult(ProcessDied(3), None))
    unit = Unit([SweepJob(tiny_job(tmp_path / name), earlier=before) for name in recorded])
    died = "the process ended without a result: exit status 3"
    assert [(result.exit_status, result.message) for result in unit.run().results] == [
        (0, ""), (1, "NaN"), (1, died), (1, died), (1, died),
    ]  # fmt: skip
