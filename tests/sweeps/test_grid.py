"""The grid sweeper: composes and checks all jobs before the first one starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from sweeps import SHORT, short_with_fault, sweep_table
from training_runs import run_command


@pytest.mark.slow
def test_a_sweep_with_an_impossible_job_does_not_start(tmp_path: Path) -> None:
    swept = run_command("-m", *SHORT, "optimizer=adamw,adamm", cwd=tmp_path)
    assert swept.returncode == 2
    assert "did you mean" in swept.stderr.splitlines()[-1]
    impossible = run_command("-m", *SHORT, "precision=fp32", "optimizer.lr=0.1,high", cwd=tmp_path)
    assert impossible.returncode == 2
    assert "optimizer.lr" in impossible.stderr.splitlines()[-1]
    assert not (tmp_path / "multirun").exists()


@pytest.mark.slow
def test_jobs_are_checked_once_for_all_seeds_and_have_their_environment(tmp_path: Path) -> None:
    swept = run_command(
        "-m",
        *short_with_fault(tmp_path),
        "name=study",
        "seed=0,1,2",
        "+hydra.job.env_set.FLAVOUR=vanilla",
        cwd=tmp_path,
    )
    assert swept.returncode == 0, swept.stderr
    built = [line.split() for line in (tmp_path / "built").read_text().splitlines()]
    assert len(built) == 1 + 3
    assert [flavour for _, flavour in built[1:]] == ["vanilla"] * 3


@pytest.mark.slow
def test_any_exception_of_a_model_refuses_the_sweep(tmp_path: Path) -> None:
    refused = run_command("-m", *short_with_fault(tmp_path), "model.fault=none,odd", cwd=tmp_path)
    assert refused.returncode == 2
    last = refused.stderr.splitlines()[-1]
    assert "model: custom.model refuses it: Odd: strange (at custom.py:10) [job: " in last
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "multirun").exists()


@pytest.mark.slow
def test_hydra_interpolations_globs_and_subfolders_work_in_a_sweep(tmp_path: Path) -> None:
    swept = run_command(
        "-m", *SHORT, "name=study", "optimizer=adamw,sgd", "seed=${hydra:job.num}", "scheduler=glob(wsd*)",
        "hydra.sweep.subdir=${hydra:job.num}/deep", cwd=tmp_path,
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    assert [row["status"] for row in sweep_table(tmp_path / "multirun" / "study")] == ["finished"] * 2
    configs = [tmp_path / "multirun" / "study" / str(n) / "deep" / "config.yaml" for n in (0, 1)]
    assert [yaml.safe_load(config.read_text())["seed"] for config in configs] == [0, 1]
