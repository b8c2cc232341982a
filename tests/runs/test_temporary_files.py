"""Temporary files that a kill has left."""

from __future__ import annotations

from pathlib import Path

from training_runs import DIGITS, Train

from hydrant.files.atomic_write import replacing
from hydrant.runs.folder import SWEEP_LOCK
from hydrant.sweeps.sweep import Sweep


def test_a_run_removes_the_temporary_files_of_a_killed_one_and_nothing_else(
    train: Train, workdir: Path
) -> None:
    hydra = workdir / "outputs" / "run" / ".hydra"
    hydra.mkdir(parents=True)
    left = [hydra.parent / ".summary.json.123.tmp", hydra / ".overrides.yaml.45.tmp"]
    kept = [hydra.parent / ".notes.tmp", hydra.parent / ".123.tmp", hydra / "a.1.tmp"]
    for file in (*left, *kept):
        file.write_text("{")
    (hydra.parent / ".mine.1.tmp").mkdir()
    train(*DIGITS, "duration=4")
    assert not [file for file in left if file.exists()]
    assert all(path.exists() for path in (*kept, hydra.parent / ".mine.1.tmp"))


def test_a_sweep_removes_the_temporary_files_that_nobody_is_writing(tmp_path: Path) -> None:
    """Another sweep in the same folder may be writing the others."""
    left = tmp_path / ".sweep.json.1.tmp"
    with replacing(tmp_path / "sweep.csv"):
        [written] = tmp_path.iterdir()
        left.write_text("{")
        with Sweep().active(tmp_path, {}):
            pass
        assert {path.name for path in tmp_path.iterdir()} == {written.name, SWEEP_LOCK, "sweep.json"}
