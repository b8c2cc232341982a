"""Jobs under SLURM: requeued, cancelled, found again after a kill; srun starts the ranks of a run."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import blocks
from killing import kill
from processes import LONG, wait_for, wait_for_row
from repository import ROOT
from run_folders import assert_close_rows, assert_same_state, rows, summary, weights
from sweeps import FOUR_UPDATES, LAUNCHERS, started_runs, sweep_table
from training_runs import command, run_command

from hydrant.sweeps.plan import sweep_progress

pytestmark = pytest.mark.slow


def test_a_requeued_job_continues_in_its_folder(slurm: None, workdir: Path) -> None:
    """SLURM signals all processes of a job, and starts it again two minutes later."""
    words = ("tracker=local", "model.hidden=[16]", "duration=1500", "log_every=20", "eval_every=400",
             "save_every=400", "parallel.num_processes=2")  # fmt: skip
    assert run_command(*words, "name=whole", cwd=workdir).returncode == 0
    whole, study = workdir / "outputs" / "whole", workdir / "multirun" / "requeued"
    swept = subprocess.Popen(
        command("-m", *LAUNCHERS["slurm"], *words, "name=requeued", "seed=0"), cwd=workdir, text=True
    )
    wait_for(lambda: any(len(p.read_text().splitlines()) > 3 for p in study.glob("*/metrics.jsonl")), swept)
    listed = subprocess.run(
        ["squeue", "-h", "--name=requeued", "-o", "%i"], capture_output=True, text=True, check=True
    )
    subprocess.run(["scancel", "--signal=USR2", listed.stdout.strip()], check=True)
    (run,) = (path for path in study.iterdir() if path.is_dir() and path.name[0] != ".")
    wait_for(lambda: summary(run)["status"] == "preempted", swept)
    assert summary(run)["num_updates"] < 1500
    assert swept.wait(timeout=500) == 0
    assert rows(run) == rows(whole)
    assert_same_state(weights(run), weights(whole))


def test_the_batch_file_of_the_guide_requeues_its_run(slurm: None, workdir: Path) -> None:
    """On two ranks of this machine. It ends as the same run without an interruption."""
    words = ("tracker=local", "model.hidden=[16]", "duration=1500", "log_every=20", "save_every=400")
    assert run_command(*words, "name=whole", "parallel.num_processes=2", cwd=workdir).returncode == 0
    [script] = [text for text in blocks("docs/guides/slurm.md", "text") if text.startswith("#!/bin/bash\n")]
    script = re.sub(r"#SBATCH --(gpus|cpus|nodes|time)\S*\n", "", script).replace(
        "optimizer=adamw", " ".join(words)
    )
    script = script.replace("python train.py", f"{sys.executable} {ROOT / 'train.py'}")
    Path("first.sbatch").write_text(script)
    submitted = subprocess.run(
        ["sbatch", "--parsable", "first.sbatch"], capture_output=True, text=True, check=True
    )
    whole, run = (workdir / "outputs" / name for name in ("whole", "first"))
    with subprocess.Popen(["sleep", "600"]) as waiting:
        wait_for_row(run, 100, waiting)
        subprocess.run(["scancel", "--signal=USR1", submitted.stdout.strip()], check=True)
        wait_for(lambda: summary(run)["status"] == "preempted", waiting)
        wait_for(lambda: summary(run)["status"] == "finished", waiting, seconds=400)
        waiting.kill()
    assert Path("first.out").read_text().count("finished: ") == 1
    assert rows(run) == rows(whole)
    assert_same_state(weights(run), weights(whole))


def test_a_job_that_slurm_cancels_is_recorded(slurm: None, workdir: Path) -> None:
    swept = subprocess.Popen(
        command("-m", *LAUNCHERS["slurm"], *LONG, "name=cancelled", "seed=0,1", "hydra.launcher.num_jobs=1"),
        cwd=workdir, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    study = workdir / "multirun" / "cancelled"
    wait_for(lambda: any(study.glob("*/metrics.jsonl")), swept)
    subprocess.run(["scancel", "--name=cancelled"], check=True)
    _, errors = swept.communicate(timeout=180)
    assert swept.returncode == 143
    assert "job 0: stopped by SIGTERM after update" in errors
    assert "ended without a result" in errors
    assert [row["status"] for row in sweep_table(study)] == ["preempted", "failed"]


def test_srun_starts_the_ranks_of_one_run(slurm: None, single_run: Path, workdir: Path) -> None:
    train = [sys.executable, str(ROOT / "train.py"), "tracker=local", *FOUR_UPDATES, "optimizer.lr=0.1"]
    done = subprocess.run(["srun", "-n2", *train], cwd=workdir, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = (workdir / "outputs").glob("*/*")  # without a name: rank 0 decides the time in the path
    assert_close_rows(single_run, run)
    assert (
        done.stdout.count("finished: 4 updates") == (run / "train.log").read_text().count("finished: ") == 1
    )
    batch = [f"--output={workdir}/batch.txt", "--wait", "--ntasks=2"]
    script = " ".join(["--wrap", f"'{' '.join(train)} name=batch'"])
    subprocess.run(
        f"sbatch {' '.join(batch)} {script}", shell=True, cwd=workdir, check=True, capture_output=True
    )
    assert rows(workdir / "outputs" / "batch") == rows(single_run)  # without srun, the process is no rank


def test_submitted_jobs_are_not_submitted_again(slurm: None, workdir: Path) -> None:
    words = (*LONG, "name=submitted", "seed=0,1,2", "hydra/launcher=slurm", "hydra.launcher.num_jobs=1",
             "hydra.sweep.subdir=seed-${seed}")  # fmt: skip
    study = workdir / "multirun" / "submitted"
    first = subprocess.Popen(command("-m", *words), cwd=workdir)
    wait_for(lambda: bool(started_runs(study)), first)
    kill([first.pid])
    first.wait()
    assert [run.state for run in sweep_progress(study)] == ["running", "not started", "not started"]
    other = run_command("-m", *words, "seed=1", "optimizer.lr=0.5", cwd=workdir)
    assert other.returncode == 2
    assert "still runs seed-1 with another config (optimizer.lr (0.001 there, 0.5 here))" in other.stderr
    with Path("output").open("w") as output:
        again = subprocess.Popen(command("-m", *words), cwd=workdir, stdout=output)
    wait_for(lambda: Path("output").read_text().count("already submitted") == 3, again)
    listed = subprocess.run(
        ["squeue", "-h", "-r", "--name=submitted"], capture_output=True, text=True, check=True
    ).stdout
    assert len(listed.splitlines()) == 3
    again.send_signal(signal.SIGINT)
    again.wait(timeout=120)
    assert again.returncode == 130
    assert [summary(run)["status"] for run in started_runs(study)] == ["preempted"]
