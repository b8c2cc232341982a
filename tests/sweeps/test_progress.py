"""The progress of a sweep's runs, read from folders that other processes write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from run_states import sweep_in_all_states

from hydrant.runs.lock import shared
from hydrant.sweeps.progress import sweep_progress


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return sweep_in_all_states(tmp_path)


def test_jobs_are_queued_while_a_process_holds_the_sweep(sweep: Path) -> None:
    """Two sweeps may share a folder: when the first one ends, the jobs of the other are still queued."""
    with shared(sweep):
        with shared(sweep):
            pass
        assert "queued" in {run.state for run in sweep_progress(sweep)}
    assert "queued" not in {run.state for run in sweep_progress(sweep)}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", b"[]"),
        ("summary.json", b'{"status": "\xff"}'),
        (".hydra/overrides.yaml", b"- 'seed"),
        (".hydra/overrides.yaml", b"seed: 0"),
    ],
)
def test_a_damaged_file_affects_only_its_run(sweep: Path, file: str, content: bytes) -> None:
    path = sweep / "finished" / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    damaged, *others = sweep_progress(sweep)
    assert (damaged.state, damaged.choices["model"]) == ("damaged", "finished")
    assert f"{file} is damaged" in damaged.message
    assert "damaged" not in {run.state for run in others}


def test_damaged_rows_are_skipped(sweep: Path) -> None:
    with (sweep / "killed" / "metrics.jsonl").open("wb") as file:
        file.write(b'{"train/loss": 1}\n[]\n\xff\n{"num_updates": 30, "train/loss": 2}\n')
    (killed,) = (run for run in sweep_progress(sweep) if run.state == "killed" and run.run == "killed")
    assert (killed.num_updates, killed.loss) == (30, 2)


def test_a_pipe_instead_of_the_rows_is_not_waited_for(sweep: Path) -> None:
    metrics = sweep / "killed" / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    os.mkfifo(metrics)
    (killed,) = (run for run in sweep_progress(sweep) if run.run == "killed")
    assert (killed.state, killed.loss) == ("killed", None)
