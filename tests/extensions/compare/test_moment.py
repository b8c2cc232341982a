"""Which weights the compared values are of: those of the last update, or of the checkpoint that was tested."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from planted import Compare, write_run
from playwright.sync_api import Page

from hydrant.extensions.compare.html_page import write_page
from hydrant.extensions.compare.serialize import to_csv, to_dict, to_text


def write_tested(folder: Path, tested: Sequence[int]) -> Path:
    """Write runs of 3,000 updates, of which these are tested."""
    for seed, num_updates in enumerate(tested):
        run = write_run(folder / f"{seed}", {"seed": seed}, 0.9, total_updates=3000)
        row = {"num_updates": 3000, "epoch": 30, "time": 1.7e9, "test/accuracy": 0.8 + seed / 100,
               "test_ema/accuracy": 0.9, "test/num_updates": num_updates}  # fmt: skip
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    return folder


@pytest.mark.parametrize("metric", ["test/accuracy", "test_ema/accuracy"])
def test_a_test_is_of_the_checkpoint_that_was_tested(
    metric: str, tmp_path: Path, comparing: Compare, open_page: Callable[[Path], Page]
) -> None:
    comparison = comparing(write_tested(tmp_path / "runs", [1000, 2500]), metric=metric)
    moment = "of the checkpoints that were tested, after 1,000 to 2,500 updates"
    text = to_text(comparison, None)
    assert f"{metric} {moment}; higher is better." in text
    assert [line.split()[3:5] for line in text.splitlines() if line[:1] in "01" and "finished" in line] == [
        ["3000", "1000"], ["3000", "2500"]
    ]  # fmt: skip
    plain = to_dict(comparison)
    assert plain["moment"] == moment
    assert [run["measured_at"] for run in plain["runs"]] == [1000, 2500]
    assert [row["measured_at"] for row in csv.DictReader(io.StringIO(to_csv(comparison)))] == ["1000", "2500"]
    write_page(comparison, tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    assert moment in page.inner_text("#states")
    assert moment in page.inner_text("#groups")
    assert "measured after" in page.inner_text("#runs")
    assert "last update" not in text + page.inner_text("body")


def test_other_values_are_of_the_last_update(tmp_path: Path, comparing: Compare) -> None:
    runs = write_tested(tmp_path, [1000, 1000])
    assert "val/accuracy after the last update" in to_text(comparing(runs), None)
    assert [run["measured_at"] for run in to_dict(comparing(runs))["runs"]] == [3000, 3000]
    one = comparing(runs, metric="test/accuracy")
    assert "of the checkpoints that were tested, after 1,000 updates; " in to_text(one, None)
    last = comparing(write_tested(tmp_path / "last", [3000, 3000]), metric="test/accuracy")
    assert "test/accuracy after the last update" in to_text(last, None)


def test_a_value_that_was_last_measured_earlier_says_when(tmp_path: Path, comparing: Compare) -> None:
    """Such as one that a hook logs now and then."""
    for seed in range(2):
        run = write_run(tmp_path / f"{seed}", {"seed": seed}, 0.9, total_updates=3000)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"num_updates": 2900, "epoch": 29, "time": 1.7e9, "mine/norm": 1.0}) + "\n")
    text = to_text(comparing(tmp_path, metric="mine/norm", mode="max"), None)
    assert "mine/norm after 2,900 updates; higher is better." in text
