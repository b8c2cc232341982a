"""The record of a run's config in its folder."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hydrant.runs.folder import RunFolder
from hydrant.runs.job import Job, identify, write_records
from hydrant.sweeps.plan import write_sweep_csv

CHOICES = dict.fromkeys(("data", "model", "optimizer", "scheduler", "task"), "any")
CONFIG = {
    "name": None,
    "claim": None,
    "tags": [],
    "notes": None,
    "best": {"metric": "val/loss", "mode": "min"},
}


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
        write_sweep_csv(tmp_path, [RunFolder(tmp_path)])
    assert {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()} == before


def test_the_group_leaves_out_intervals_and_no_other_keys(tmp_path: Path) -> None:
    overrides = ["eval_every=1ep", "save_every=1ep", "model.downsample_every=2", "seed=1"]
    job = Job(CONFIG, tmp_path, CHOICES, {}, overrides, None)
    assert identify(job).group == "any-any/any/any/model.downsample_every=2"


def test_a_part_that_is_no_option_is_named_by_its_class(tmp_path: Path) -> None:
    """As with `~model '+model={_target_: own.Net}'`, and without a scheduler."""
    choices = {**CHOICES, "model": None}
    del choices["scheduler"]
    config = {**CONFIG, "model": {"_target_": "own.Net"}}
    job = Job(config, tmp_path, choices, {}, ["~model", "+model={_target_: own.Net}"], None)
    assert identify(job).group == "any-Net/any/none"


@pytest.mark.parametrize(
    ("changes", "sweep", "tags", "notes"),
    [
        ({}, None, (), "claim: 97 %\nseed=1"),
        ({"tags": ["b", "a", "b"], "notes": "why"}, None, ("b", "a"), "why"),
        ({"name": "study", "tags": ["a"]}, Path("multirun/study"), ("a", "study"), "claim: 97 %\nseed=1"),
        ({}, Path("multirun/2026-01-31/12-00-00.000"), (), "claim: 97 %\nseed=1"),  # a date says nothing
    ],
)
def test_tags_are_those_of_the_user_and_the_name_of_a_named_sweep(
    changes: dict[str, Any], sweep: Path | None, tags: tuple[str, ...], notes: str, tmp_path: Path
) -> None:
    job = Job({**CONFIG, "claim": "97 %", **changes}, tmp_path, CHOICES, {}, ["seed=1"], sweep)
    assert (identify(job).tags, identify(job).notes) == (tags, notes)
