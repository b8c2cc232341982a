"""A comparison of very many runs is short and its work is linear; one of extreme numbers stays finite."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import comparing, many_runs, write_run
from reports import data_of

from hydrant.extensions.compare import groups
from hydrant.extensions.compare.command import write_page
from hydrant.extensions.compare.comparison import Comparison, compare
from hydrant.extensions.compare.run import Run
from hydrant.extensions.compare.serialize import to_csv, to_dict, to_text
from hydrant.extensions.compare.sources import Question
from hydrant.extensions.compare.verdict import short_name


def grid(num_runs: int) -> list[Run]:
    """Return runs with two seeds of each learning rate."""
    return [
        replace(
            run, config={**run.config, "optimizer.lr": 1e-4 * (n // 2), "seed": n % 2, "data.split_seed": 0}
        )
        for n, run in enumerate(many_runs(num_runs, num_points=4))
    ]


def compared(runs: Sequence[Run]) -> Comparison:
    return compare(runs, Question(metric="val/accuracy", mode="max"))


@pytest.mark.slow
def test_a_report_of_many_runs_fits_on_a_screen_and_the_files_have_all() -> None:
    comparison = compared(grid(400))
    lines = to_text(comparison, None).splitlines()
    assert len(lines) <= 25
    assert any(line.startswith("and 397 more groups, which are not better") for line in lines)
    detailed = to_text(comparison, None, details=True).splitlines()
    assert len(detailed) <= 60
    assert any(line.startswith("and 397 more runs, which are not better") for line in detailed)
    assert comparison.winner is not None
    assert lines[0].startswith(f"Undecided: {short_name(comparison.winner)} leads ")
    assert len(to_dict(comparison)["runs"]) == len(to_csv(comparison).splitlines()) - 1 == 400


def test_a_report_of_a_hundred_runs_lists_them() -> None:
    text = to_text(compared(grid(100)), None, details=True)
    assert sum("  finished  " in line for line in text.splitlines()) == 100
    assert "more runs" not in text


@pytest.mark.parametrize(("module", "name"), [(groups, "seed_of"), (groups, "repetition")])
def test_the_work_is_linear_in_the_runs(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in what is read of the runs: the seeds of the groups."""
    counts: list[int] = []
    function = getattr(module, name)

    def counting(run: Run, *key: str) -> str:
        counts[-1] += 1
        return function(run, *key)

    monkeypatch.setattr(module, name, counting)
    for num_runs in (50, 100, 200):
        counts.append(0)
        runs = [
            replace(run, summary={**run.summary, "environment": {"torch": "2"}}) for run in grid(num_runs)
        ]
        compared(runs)
    assert counts[0] > 0
    assert counts[1] == 2 * counts[0]
    assert counts[2] == 2 * counts[1]


@pytest.mark.parametrize(
    "values", [(5e-324, 1e-323, 5e-324, 0.0), (1e308, 1.5e308, -1e308, 1.7e308), (5e-324, 1e308, 0.5, -1e308)]
)
def test_extreme_numbers_give_no_nan(values: Sequence[float], tmp_path: Path) -> None:
    for n, value in enumerate(values):
        overrides = {"optimizer": ("sgd", "lion")[n // 2], "seed": n % 2}
        write_run(tmp_path / "runs" / f"{n}", overrides, value, values=[0.1, value, value])
    comparison = comparing(tmp_path / "runs")
    text = to_text(comparison, None)
    assert "nan" not in text
    assert "inf" not in text
    write_page(comparison, tmp_path / "page.html")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert [run["name"] for run in data_of(tmp_path / "page.html")["runs"]] == ["0", "1", "2", "3"]
    json.loads(json.dumps(to_dict(comparison)), parse_constant=refuse)
