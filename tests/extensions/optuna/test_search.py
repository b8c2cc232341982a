"""The loop of a study, in sweeps: its trials run, fail, are pruned, are killed and continue."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from optuna import load_study
from optuna.trial import TrialState
from processes import wait_for
from run_folders import rows, summary
from searches import TINY
from sweeps import sweep_table
from training_runs import command, run_command

from hydrant import cli
from hydrant.extensions.optuna.trials import open_storage
from hydrant.records import Objective

BRIEF = ("tracker=local", "duration=300", "log_every=10", "eval_every=100", "save_every=100", "model.hidden=[16]",
         "name=study", "sweep=optuna", "hydra.sweeper.n_trials=3", "hydra/sweeper/sampler=random",
         "hydra/sweeper/pruner=none", "limit_val_samples=64", "claim=planted-secret")  # fmt: skip

THIRTY_TRIALS = ("tracker=local", "log_every=4", "eval_every=4", "save_every=4", "model.hidden=[8]", "duration=24",
                 "limit_train_samples=256", "limit_val_samples=128", "global_batch_size=16", "name=study",
                 "sweep=optuna", "optimizer=adamw,sgd", "hydra.sweeper.n_trials=30")  # fmt: skip


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to all processes of a session."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(path.name)) == process.pid:
                os.kill(int(path.name), signal.SIGKILL)
    process.wait()


def outcome(study: Path) -> list[tuple[Any, ...]]:
    """Return of each trial its parameters, its state and all values that it reported."""
    loaded = load_study(study_name="study", storage=open_storage(study))
    return [(t.number, t.params, t.state, t.values, t.intermediate_values) for t in loaded.trials]


@pytest.mark.slow
def test_a_killed_study_continues_and_the_printed_command_repeats_its_best_trial(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The printed command hides the secret, which changes no result."""
    study = workdir / "multirun" / "study"
    process = subprocess.Popen(command("-m", *BRIEF), start_new_session=True, stdout=subprocess.DEVNULL)
    wait_for(lambda: bool(list(study.glob("0001_*/metrics.jsonl"))), process)
    kill_session(process)
    monkeypatch.setenv("PLANTED_TOKEN", "planted-secret")
    monkeypatch.setattr("sys.argv", ["hydrant"])
    assert cli.main(["train", "-m", *BRIEF]) == 0
    output = capfd.readouterr().out
    assert output.startswith("multirun/study: 1 of 3 trials are finished; continuing 1 interrupted trial\n")
    assert "planted-secret" not in output
    states = [(number, state) for number, _, state, *_ in outcome(study)]
    assert states == [(n, TrialState.COMPLETE) for n in range(3)]
    (line,) = re.findall(r"  python train\.py (.+)", output)
    (best,) = study.glob(f"{int(re.findall(r'best: trial (.)', output)[0]):04}_*")
    assert cli.main(["train", "name=best", *shlex.split(line)]) == 0
    assert rows(workdir / "outputs" / "best") == rows(best)


def test_a_pruned_trial_ends_early_with_a_checkpoint(workdir: Path) -> None:
    """The pruner's threshold, which no trial reaches, counts from the second evaluation on."""
    words = ("-m", "sweep=optuna", *TINY, "name=study", "hydra.sweeper.n_trials=1", "hydra/sweeper/pruner=none",
             "hydra.sweeper.pruner._target_=optuna.pruners.ThresholdPruner", "+hydra.sweeper.pruner.lower=2",
             "+hydra.sweeper.pruner.n_warmup_steps=2", "duration=8")  # fmt: skip
    assert cli.main(["train", *words]) == 0
    study = workdir / "multirun" / "study"
    (row,) = sweep_table(study)
    assert (row["status"], row["num_updates"]) == ("pruned", "4")
    record = summary(study / row["run"])
    assert (record["status"], record["pruned"], record["trial"]["number"]) == ("finished", True, 0)
    assert (study / row["run"] / "checkpoints" / "update_00000004").is_dir()
    assert Objective("num_parameters", "min").value(record, []) == 64 * 4 + 4 + 4 * 10 + 10


@pytest.mark.slow
def test_a_study_killed_twice_equals_one_that_was_not(workdir: Path) -> None:
    folders = [workdir / "whole", workdir / "killed"]
    for folder in folders:
        folder.mkdir()
    done = run_command("-m", *THIRTY_TRIALS, cwd=folders[0])
    assert done.returncode == 0, done.stderr
    study = folders[1] / "multirun" / "study"
    for num_trials in (7, 18):
        process = subprocess.Popen(
            command("-m", *THIRTY_TRIALS), cwd=folders[1], start_new_session=True, stdout=subprocess.DEVNULL
        )
        wait_for(lambda n=num_trials: any(study.glob(f"{n:04d}_*/metrics.jsonl")), process, 600, 0.01)
        kill_session(process)
    last = run_command("-m", *THIRTY_TRIALS, cwd=folders[1])
    assert last.returncode == 0, last.stderr
    whole, killed = (outcome(folder / "multirun" / "study") for folder in folders)
    assert killed == whole
    states = [state for _, _, state, _, _ in killed]
    assert len(states) == 30
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}
    runs = [path for path in study.iterdir() if path.is_dir()]
    assert len(runs) == 30
    for run in runs:
        updates = [row["num_updates"] for row in rows(run)]
        assert updates == sorted(set(updates))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["local", "ray"])
def test_trials_of_two_ranks_run_at_the_same_time(launcher: str, workdir: Path) -> None:
    """Pruned or not, all ranks end after the same update; several processes write to the storage."""
    words = ("-m", *THIRTY_TRIALS, f"hydra/launcher={launcher}", "hydra.launcher.num_jobs=2",
             "parallel.num_processes=2", "hydra.sweeper.n_trials=6", "hydra/sweeper/pruner=successive_halving",
             "hydra.sweeper.pruner.reduction_factor=2")  # fmt: skip
    words += ("hydra.launcher.num_cpus=0.25",) if launcher == "ray" else ()
    swept = run_command(*words, cwd=workdir)
    assert swept.returncode == 0, swept.stderr
    study = workdir / "multirun" / "study"
    states = [row["status"] for row in sweep_table(study)]
    assert len(states) == 6
    assert set(states) == {"finished", "pruned"}
    [best] = json.loads(run_command(*words, "--json", cwd=workdir).stdout)["result"]["best"]
    finished = [float(row["best"]) for row in sweep_table(study) if row["status"] == "finished"]
    assert best["values"] == [max(finished)]
    assert "best: trial" in swept.stdout


@pytest.mark.slow
def test_a_study_fails_only_after_max_failures(workdir: Path) -> None:
    words = ("-m", "hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", *TINY, "optimizer=sgd")
    swept = run_command(*words, "name=some", "optimizer.lr=0.1,1e30", cwd=workdir)
    assert swept.returncode == 0, swept.stderr
    statuses = sorted(row["status"] for row in sweep_table(workdir / "multirun" / "some"))
    assert statuses == ["failed", "finished"]
    assert "error: train/loss became NaN or infinite" in swept.stderr
    assert "best: trial" in swept.stdout
    again = run_command(*words, "name=some", "optimizer.lr=0.1,1e30", cwd=workdir)  # no combination is left
    assert again.returncode == 0
    assert len(sweep_table(workdir / "multirun" / "some")) == 2
    all_fail = ("name=all", "optimizer.lr=1e30,1e31", "hydra.sweeper.max_failures=0")
    broken = run_command(*words, *all_fail, cwd=workdir)
    assert broken.returncode == 1
    assert "1 trial failed, more than hydra.sweeper.max_failures=0: trial 0: train/loss" in broken.stderr
    assert len(sweep_table(workdir / "multirun" / "all")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("num_jobs", [1, 3])
def test_five_trials_of_two_combinations_are_two_runs(num_jobs: int, workdir: Path) -> None:
    """Also if they are drawn at once: who draws the parameters of a trial that runs waits for its result."""
    words = ("-m", "hydra/sweeper=optuna", *TINY, "name=study", "hydra.sweeper.n_trials=5",
             "optimizer=adamw,sgd")  # fmt: skip
    words += ("hydra/launcher=local", f"hydra.launcher.num_jobs={num_jobs}")
    swept = run_command(*words, cwd=workdir)
    assert swept.returncode == 0, swept.stderr
    study = workdir / "multirun" / "study"
    assert len(sweep_table(study)) == 2
    trials = outcome(study)
    assert [state for _, _, state, *_ in trials] == [TrialState.COMPLETE] * 5
    assert len({(params["optimizer"], *values) for _, params, _, values, _ in trials}) == 2
    assert swept.stdout.count("whose result it takes") == 3


@pytest.mark.slow
def test_several_objectives_give_a_pareto_front(workdir: Path) -> None:
    objectives = "[{metric: val/loss, mode: min}, {metric: num_parameters, mode: min}]"
    words = ("-m", "hydra/sweeper=optuna", *TINY, "name=study", "hydra.sweeper.n_trials=4", "model.hidden=[2],[4],[8]",
             "hydra/sweeper/sampler=random", f"hydra.sweeper.objectives={objectives}",
             "optimizer.lr=interval(0.001,0.1)")  # fmt: skip
    swept = run_command(*words, cwd=workdir)
    assert swept.returncode == 0, swept.stderr
    solutions = json.loads(run_command(*words, "--json", cwd=workdir).stdout)["result"]["best"]
    front = sorted(solution["values"] for solution in solutions)  # by loss
    assert [size for _, size in front] == sorted({size for _, size in front}, reverse=True)
    assert swept.stdout.count("best: trial") == len(solutions)
    assert all(isinstance(s["params"]["model.hidden"], list) for s in solutions)
