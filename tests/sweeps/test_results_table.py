"""The lines that a sweep prints at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hydrant.runs.folder import RunFolder
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
    print_table(tmp_path, runs[::-1], [], mode)
    first, *lines, last = capsys.readouterr().out.strip().splitlines()
    assert first.endswith(f": 23 runs, see {tmp_path / 'sweep.csv'}")
    assert [line.split()[0] for line in lines] == ["seed=7777", *(f"seed={seed}" for seed in best)]
    assert len(lines) == MAX_PRINTED
    assert last == f"  and 3 finished: hydrant status {tmp_path} lists all"


def test_a_few_runs_are_printed_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [finished(tmp_path / str(seed), seed, seed % 7) for seed in range(MAX_PRINTED)]
    print_table(tmp_path, runs, [], "min")
    lines = capsys.readouterr().out.strip().splitlines()[1:]
    assert [line.split()[0] for line in lines] == [f"seed={seed}" for seed in range(MAX_PRINTED)]
