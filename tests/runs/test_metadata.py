"""The record of a run's config in its folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hydrant.runs.folder import read_run
from hydrant.runs.job import Job
from hydrant.runs.metadata import identify, write_records
from hydrant.sweeps.results_table import write_sweep_csv


def test_rewritten_files_are_complete_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails while a file is rewritten leaves the old file."""
    job = Job({"name": None}, tmp_path, {}, {"overrides.yaml": "- seed=0\n"}, [], None)
    write_records(job)
    write_sweep_csv(tmp_path, [])
    before = {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_records(dataclasses.replace(job, records={"overrides.yaml": "- seed=1\n"}))
    with pytest.raises(OSError, match="full"):
        write_sweep_csv(tmp_path, [read_run(tmp_path)])
    assert {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()} == before


def test_the_group_leaves_out_intervals_and_no_other_keys(tmp_path: Path) -> None:
    choices = dict.fromkeys(("data", "model", "optimizer", "scheduler", "task"), "any")
    config = {"name": None, "claim": None, "best": {"metric": "val/loss", "mode": "min"}}
    overrides = ["eval_every=1ep", "save_every=1ep", "model.downsample_every=2", "seed=1"]
    job = Job(config, tmp_path, choices, {}, overrides, None)
    assert identify(job).group == "any-any/any/any/model.downsample_every=2"
