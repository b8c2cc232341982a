"""One job is one process group, one folder and one tracker run, whichever launcher runs it. Real clusters, on CPUs."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm as one_node
from checks import ROOT, assert_same_state, command, rows, run_command, summary, weights
from processes import LONG, wait_for

from hydrant.gpus import held

WORDS = ("model.hidden=[16]", "duration=4", "log_every=1", "eval_every=2", "save_every=2", "micro_batch_size=16",
         "optimizer=sgd")  # fmt: skip
LAUNCHERS = {
    "basic": (),
    "local": ("hydra/launcher=local", "hydra.launcher.num_jobs=2"),
    "joblib": ("hydra/launcher=joblib", "hydra.launcher.num_jobs=2"),
    "ray": ("hydra/launcher=ray", "hydra.launcher.num_jobs=2", "hydra.launcher.num_cpus=0.5"),
    "submitit_local": ("hydra/launcher=slurm", "hydra.launcher.cluster=local"),
    "slurm": ("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.partition=debug"),
}
BY_LAUNCHER = pytest.mark.parametrize(
    "launcher",
    [pytest.param(name, marks=pytest.mark.slow) for name in LAUNCHERS],
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from one_node.running(tmp_path_factory.mktemp("slurm"))


@pytest.fixture
def options(launcher: str, request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The words that choose a launcher, whose cluster is there."""
    if launcher == "slurm":
        request.getfixturevalue("slurm")
    return LAUNCHERS[launcher]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one rank that no launcher runs."""
    folder = tmp_path_factory.mktemp("alone")
    done = run_command("name=alone", "tracker=local", *WORDS, "optimizer.lr=0.1", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "outputs" / "alone"


def table(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "sweep.csv").open(newline="") as file:
        return {row["optimizer.lr"]: row for row in csv.DictReader(file)}


def assert_alike(one: Path, other: Path) -> None:
    for a, b in zip(rows(one), rows(other), strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-6)


@BY_LAUNCHER
def test_a_job_of_two_ranks_is_the_run_of_one(options: tuple[str, ...], alone: Path, workdir: Path) -> None:
    words = ("-m", *options, *WORDS, "name=study", "optimizer.lr=0.1,1e30", "parallel.num_processes=2")
    swept = run_command(*words, cwd=workdir, WANDB_MODE="offline")
    assert swept.returncode == 1
    assert "train/loss became NaN or infinite" in swept.stderr.partition("job 1: error: ")[2], swept.stderr
    study = workdir / "multirun" / "study"
    assert {lr: row["status"] for lr, row in table(study).items()} == {"0.1": "finished", "1e+30": "failed"}
    good = study / table(study)["0.1"]["run"]
    assert_alike(alone, good)
    assert [path.parent.name for path in good.rglob("run-*.wandb")] == [
        Path(summary(good)["wandb"]["path"]).name
    ]
    assert len([path for path in study.iterdir() if path.is_dir() and path.name[0] != "."]) == 2
    again = run_command(
        *words, cwd=workdir, WANDB_MODE="offline"
    )  # the finished one is skipped, the other tried
    assert again.returncode == 1
    assert {lr: row["status"] for lr, row in table(study).items()} == {"0.1": "finished", "1e+30": "failed"}
    assert len(list(good.rglob("run-*.wandb"))) == 1


@pytest.mark.slow
@BY_LAUNCHER
def test_ctrl_c_saves_what_runs_and_starts_nothing_more(options: tuple[str, ...], workdir: Path) -> None:
    swept = subprocess.Popen(
        command("-m", *options, *LONG, "name=study", "seed=0,1,2"), cwd=workdir, start_new_session=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    study = workdir / "multirun" / "study"
    wait_for(lambda: any(study.glob("*/metrics.jsonl")), swept)
    os.killpg(swept.pid, signal.SIGINT)  # as the terminal does
    output, _ = swept.communicate(timeout=120)
    assert swept.returncode == 130
    begun = [path.parent for path in study.glob("*/summary.json")]
    assert begun
    assert {summary(run)["status"] for run in begun} == {"preempted"}
    there = {path for path in study.iterdir() if path.is_dir() and path.name[0] != "."}
    # One that was just being made has nothing to save.
    assert not any(row for path in there - set(begun) for row in rows(path))
    assert output.count("preempted") == len(begun)


@pytest.mark.slow
def test_a_requeued_job_continues_in_its_folder(slurm: None, workdir: Path) -> None:
    """SLURM tells all processes of a job; it begins again two minutes later."""
    words = ("tracker=local", "model.hidden=[16]", "duration=1500", "log_every=20", "eval_every=400",
             "save_every=400", "parallel.num_processes=2")  # fmt: skip
    assert run_command(*words, "name=whole", cwd=workdir).returncode == 0
    whole, study = workdir / "outputs" / "whole", workdir / "multirun" / "study"
    swept = subprocess.Popen(
        command("-m", *LAUNCHERS["slurm"], *words, "name=study", "seed=0"), cwd=workdir, text=True
    )
    wait_for(lambda: any(len(p.read_text().splitlines()) > 3 for p in study.glob("*/metrics.jsonl")), swept)
    listed = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True)
    subprocess.run(["scancel", "--signal=USR2", listed.stdout.strip()], check=True)
    (run,) = (path for path in study.iterdir() if path.is_dir() and path.name[0] != ".")
    wait_for(lambda: summary(run)["status"] == "preempted", swept)
    assert summary(run)["num_updates"] < 1500
    assert swept.wait(timeout=500) == 0
    assert rows(run) == rows(whole)
    assert_same_state(weights(run), weights(whole))


@pytest.mark.slow
def test_a_job_that_slurm_removes_is_noted(slurm: None, workdir: Path) -> None:
    swept = subprocess.Popen(
        command("-m", *LAUNCHERS["slurm"], *LONG, "name=study", "seed=0,1", "hydra.launcher.num_jobs=1"),
        cwd=workdir, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    study = workdir / "multirun" / "study"
    wait_for(lambda: any(study.glob("*/metrics.jsonl")), swept)
    subprocess.run(["scancel", "--user=root"], check=True)
    _, errors = swept.communicate(timeout=180)
    assert swept.returncode == 143
    assert "job 0: stopped by SIGTERM after update" in errors
    assert "ended without a result" in errors
    with (study / "sweep.csv").open(newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["preempted", "failed"]


@pytest.mark.slow
def test_srun_starts_the_ranks_of_one_run(slurm: None, alone: Path, workdir: Path) -> None:
    train = [sys.executable, str(ROOT / "train.py"), "tracker=local", *WORDS, "optimizer.lr=0.1"]
    done = subprocess.run(["srun", "-n2", *train], cwd=workdir, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = (workdir / "outputs").glob("*/*")  # no name: one of the ranks gave the time
    assert_alike(alone, run)
    assert done.stdout.count("run folder") == (run / "train.log").read_text().count("run folder") == 1
    batch = [f"--output={workdir}/batch.txt", "--wait", "--ntasks=2"]
    script = " ".join(["--wrap", f"'{' '.join(train)} name=batch'"])
    subprocess.run(
        f"sbatch {' '.join(batch)} {script}", shell=True, cwd=workdir, check=True, capture_output=True
    )
    assert rows(workdir / "outputs" / "batch") == rows(alone)  # no step, so no rank


def test_no_two_hold_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    using, seen, lock = list[str](), list[list[str]](), threading.Lock()

    def work() -> None:
        with held(
            ["0", "1", "2"], 2 if threading.current_thread().name == "pair" else 1, lambda: False
        ) as own:
            with lock:
                assert not set(own) & set(using)
                using.extend(own)
                seen.append(own)
            time.sleep(0.01)
            with lock:
                for gpu in own:
                    using.remove(gpu)

    threads = [threading.Thread(target=work, name="pair" if n % 3 == 0 else "single") for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, seen)) == [1] * 6 + [2] * 3
    with held(["0"], 1, lambda: False), held(["0"], 1, lambda: True) as none:
        assert none == []


PART = """
import os
from hydrant.models import MLP

def model(**arguments):
    with open("built", "a") as file:
        print(os.environ["CUDA_VISIBLE_DEVICES"], file=file)
    return MLP(**arguments)
"""


@pytest.mark.slow
def test_each_job_has_gpus_of_its_own(workdir: Path) -> None:
    (workdir / "own.py").write_text(PART)
    swept = run_command(
        "-m", *LAUNCHERS["local"], "tracker=local", "duration=1", "seed=0,1,2", "allow_targets=[own]",
        "model._target_=own.model", cwd=workdir, CUDA_VISIBLE_DEVICES="6,7",
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    checked, *built = (workdir / "built").read_text().split()
    assert checked == "6,7"
    assert len(built) == 3
    assert set(built) == {"6", "7"}
