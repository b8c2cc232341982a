"""The lines that a sweep prints at its end, and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hydrant.runs.folder import RunFolder
from hydrant.sweeps import picture
from hydrant.sweeps.picture import MAX_DRAWN, draw_curves_of
from hydrant.sweeps.results_table import MAX_PRINTED, print_table


def finished(folder: Path, seed: int, value: float, status: str = "finished") -> RunFolder:
    folder.mkdir()
    best = {"metric": "val/loss", "value": value, "num_updates": 5}
    (folder / "summary.json").write_text(json.dumps({"status": status, "num_updates": 9, "best": best}))
    return RunFolder(folder, [f"seed={seed}", "model=mlp"])


@pytest.mark.parametrize(("mode", "best"), [("min", range(19)), ("max", range(2000, 1981, -1))])
def test_of_many_runs_the_failed_and_the_best_are_printed(
    mode: str, best: range, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [*best, 1000, 1001, 1002]  # best first, so the last three are neither
    runs = [finished(tmp_path / str(seed), seed, seed / 100) for seed in seeds]
    runs.insert(7, finished(tmp_path / "7777", 7777, 0.5, status="failed"))
    runs.append(RunFolder(tmp_path / "none", ["seed=9999"]))
    print_table(tmp_path, runs[::-1], [], mode)
    first, *lines, last = capsys.readouterr().out.strip().splitlines()
    assert first.endswith(f": 24 runs, see {tmp_path / 'sweep.csv'}")
    assert [line.split()[0] for line in lines] == ["seed=7777", *(f"seed={seed}" for seed in best)]
    assert len(lines) == MAX_PRINTED
    assert last == f"  and 3 finished, 1 not started: hydrant status {tmp_path} lists all"


def test_a_few_runs_are_printed_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [finished(tmp_path / str(seed), seed, seed % 7) for seed in range(MAX_PRINTED)]
    print_table(tmp_path, runs, [], "min")
    lines = capsys.readouterr().out.strip().splitlines()[1:]
    assert [line.split()[0] for line in lines] == [f"seed={seed}" for seed in range(MAX_PRINTED)]


@pytest.mark.parametrize(
    ("mode", "best"), [("min", range(MAX_DRAWN)), ("max", range(69, 69 - MAX_DRAWN, -1))]
)
def test_the_best_of_many_runs_are_drawn(
    mode: str, best: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run without a result is not."""
    drawn = list[Any]()
    monkeypatch.setattr(picture, "draw_curves", lambda *arguments: drawn.extend(arguments))
    runs = [finished(tmp_path / str(seed), seed, seed / 100) for seed in range(70)]
    for seed in range(70):
        (tmp_path / str(seed) / "metrics.jsonl").write_text(
            json.dumps({"num_updates": 5, "val/loss": seed / 100}) + "\n"
        )
    draw_curves_of(tmp_path, [*runs, RunFolder(tmp_path / "queued", ["seed=70", "model=mlp"])], mode)
    assert drawn == [
        {"val/loss": {f"seed={seed}": ([5], [seed / 100]) for seed in best}},
        tmp_path / "sweep.png",
    ]


def test_runs_with_the_same_choices_keep_their_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As trials of a search that tries values again."""
    drawn = list[Any]()
    monkeypatch.setattr(picture, "draw_curves", lambda *arguments: drawn.extend(arguments))
    runs = [finished(tmp_path / name, seed, 0.5) for name, seed in {"a": 0, "b": 0, "c": 1}.items()]
    for run in runs:
        (run.path / "metrics.jsonl").write_text("")
    draw_curves_of(tmp_path, runs, "min")
    assert list(drawn[0]["val/loss"]) == ["seed=0 (a)", "seed=0 (b)", "seed=1"]


def test_a_sweep_without_results_has_no_picture(tmp_path: Path) -> None:
    draw_curves_of(tmp_path, [RunFolder(tmp_path / "queued", ["seed=1"])], "min")
    assert list(tmp_path.iterdir()) == []
