"""Runs that several configs trained: listed, with a warning, and in no group."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from planted import Compare, warning_texts, write_run
from playwright.sync_api import Page

from hydrant.extensions.compare.html_page import write_page
from hydrant.extensions.compare.serialize import to_dict, to_text


def write_mixed(folder: Path, lr: float, final: float) -> None:
    """Write a run that says `lr`, of which 0.1 trained the first 50 updates."""
    write_run(folder, {"optimizer.lr": lr}, final)
    record = json.loads((folder / "summary.json").read_text())
    stretches = [{"begin": 0, "end": 50, "config": {"optimizer.lr": 0.1}},
                 {"begin": 50, "end": None, "config": {"optimizer.lr": lr}}]  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(record | {"stretches": stretches}))


def test_such_a_run_is_in_no_group_and_repeats_none(tmp_path: Path, comparing: Compare) -> None:
    for lr, final in ((0.01, 0.8), (0.02, 0.9)):
        write_run(tmp_path / f"plain-{lr}", {"optimizer.lr": lr}, final)
    write_mixed(tmp_path / "mixed", 0.01, 0.99)  # as plain-0.01 by its config, and newer
    comparison = comparing(tmp_path, target="val/accuracy>=0.7")
    assert [group.estimate.mean for group in comparison.groups] == [0.8, 0.9]
    assert comparison.winner is comparison.groups[1]
    states = {run.name: run.state for run in comparison.runs}
    assert states == {"mixed": "several configs", "plain-0.01": "finished", "plain-0.02": "finished"}
    expected = "trained are in no group: mixed: optimizer.lr 0.1 until update 50, then optimizer.lr 0.01"
    assert expected in warning_texts(comparison)
    assert expected in to_text(comparison, None)
    plain = to_dict(comparison)
    assert [name for group in plain["groups"] for name in group["runs"]] == ["plain-0.01", "plain-0.02"]
    assert plain["runs"][0]["stretches"][0] == {"begin": 0, "end": 50, "config": {"optimizer.lr": 0.1}}
    assert set(comparison.profiles["updates"].scores) == {"optimizer.lr=0.01", "optimizer.lr=0.02"}


def test_the_verdict_on_such_runs_alone_sends_to_the_warnings(tmp_path: Path, comparing: Compare) -> None:
    write_mixed(tmp_path / "mixed", 0.01, 0.99)
    assert comparing(tmp_path).verdict.sentence == "No result: no run is in a group; the warnings say why."


@pytest.mark.parametrize("num_plain", [0, 1])
def test_a_comparison_with_few_or_no_other_runs_is_complete(
    num_plain: int, tmp_path: Path, comparing: Compare, open_page: Callable[[Path], Page]
) -> None:
    write_mixed(tmp_path / "runs" / "mixed", 0.01, 0.9)
    for n in range(num_plain):
        write_run(tmp_path / "runs" / f"{n}", {}, 0.9)
    comparison = comparing(tmp_path / "runs", target="val/accuracy>=0.5")
    assert (comparison.winner is None) == (num_plain == 0)
    assert "several configs" in to_text(comparison, None)
    write_page(comparison, tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    assert "1 several configs" in page.inner_text("#states")
