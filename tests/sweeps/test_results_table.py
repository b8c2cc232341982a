"""The lines that a sweep prints at its end, and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hydrant.runs.folder import RunFolder
from hydrant.sweeps import picture
from hydrant.sweeps.picture import MAX_DRAWN, draw_curves_of
from hydrant.sweeps.results_table import MAX_PRINTED, closing_fields, print_table


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


def test_the_end_of_a_sweep_names_its_best_run_and_says_why_others_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [finished(tmp_path / str(seed), seed, seed / 10) for seed in (3, 1, 2)]
    (tmp_path / "4").mkdir()
    error = {"type": "NonFiniteError", "message": "loss became NaN"}
    (tmp_path / "4" / "summary.json").write_text(
        json.dumps({"status": "failed", "num_updates": 0, "error": error})
    )
    runs.append(RunFolder(tmp_path / "4", ["seed=4", "model=mlp"]))
    print_table(tmp_path, runs, [], "min")
    assert capsys.readouterr().out.splitlines()[-2:] == ["  seed=4  failed", "    loss became NaN"]
    (tmp_path / "sweep.png").touch()
    assert closing_fields(tmp_path, runs, 61.0, "min") == {
        "best run": "seed=1: val/loss 0.1000 at update 5",
        "duration": "1:01",
        "results": f"{tmp_path}/sweep.csv",
        "curves": f"{tmp_path}/sweep.png",
        "compare": f"hydrant compare {tmp_path}",
    }
    assert closing_fields(tmp_path, runs, 61.0, "max")["best run"].startswith("seed=3: ")
    assert list(closing_fields(tmp_path / "none", runs[-1:], 1.0, "min")) == ["duration", "results"]


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
