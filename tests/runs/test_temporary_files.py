"""Temporary files that a kill has left."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from training_runs import DIGITS, Train

from hydrant.runs.folder import SWEEP_LOCK, SWEEP_TABLE
from hydrant.sweeps.plan import SweepFiles
from hydrant.sweeps.sweep import RunningSweep


def test_a_run_replaces_temporary_files_of_a_killed_one_and_nothing_else(train: Train, workdir: Path) -> None:
    hydra = workdir / "outputs" / "run" / ".hydra"
    hydra.mkdir(parents=True)
    left = [hydra.parent / ".summary.json.tmp", hydra / ".overrides.yaml.tmp"]
    kept = [hydra.parent / ".notes.tmp", hydra / "a.tmp"]
    for file in (*left, *kept):
        file.write_text("{")
    train(*DIGITS, "duration=4")
    assert not [file for file in left if file.exists()]
    assert all(path.exists() for path in kept)


def test_commands_at_work_in_one_sweep_write_its_files_in_turn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".sweep.json.tmp").write_text("{")
    with RunningSweep(tmp_path).active({}), ThreadPoolExecutor(4) as threads:
        for _ in range(100):
            threads.submit(SweepFiles(tmp_path).write_table, [])
    assert capfd.readouterr().err == ""
    assert {path.name for path in tmp_path.iterdir()} == {SWEEP_TABLE, SWEEP_LOCK, "sweep.json"}
