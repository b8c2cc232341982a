"""The lines that a sweep prints at its end, and its picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hydrant.config.schema import REPETITIONS
from hydrant.extensions.pictures import sweeps as picture
from hydrant.extensions.pictures.sweeps import MAX_SETTINGS, draw_curves_of
from hydrant.records.answers import RunProgress
from hydrant.runs.folder import RunFolder, choices_in
from hydrant.sweeps.results_table import MAX_PRINTED, best_run, closing_fields, differing_choices, print_runs


def ended(seed: int, value: float | None, state: str = "finished", message: str = "") -> RunProgress:
    return RunProgress(
        f"{seed}", f"s/{seed}", {"seed": f"{seed}", "model": "mlp"}, state, None, 9, 9,
        metric=None if value is None else "val/loss", best=value, best_num_updates=5, message=message,
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "best"), [("min", range(18)), ("max", range(2000, 1982, -1))])
def test_of_many_runs_the_failed_and_the_best_are_printed(
    mode: str, best: range, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [*best, 1000, 1001, 1002]  # best first, so the last three are neither
    runs = [ended(seed, seed / 100) for seed in seeds]
    runs.insert(7, ended(7777, 0.5, "failed", "loss became NaN"))
    runs.append(ended(9999, None, "not started"))
    print_runs("study", runs[::-1], MAX_PRINTED + 3, mode, " (status lists them)")
    first, _, *lines, last = capsys.readouterr().out.strip().splitlines()
    assert first.startswith("study: 23 runs: 21 finished, ")
    failed = lines.index("    loss became NaN")
    assert lines[failed - 1].split()[:2] == ["7777", "failed"]
    printed = [line.split()[0] for line in lines if line[0] != " "]
    assert sorted(printed) == sorted(["7777", *map(str, best)])
    assert len(lines) == MAX_PRINTED
    assert last == "and 3 finished, 1 not started (status lists them)"


def test_a_setting_has_all_of_its_repetitions() -> None:
    words = [
        [f"optimizer={name}", f"fold={n}", f"fold_seed={n}", f"seed={n}"] for name in "ab" for n in (0, 1)
    ]
    labels = differing_choices([choices_in(own) for own in words], REPETITIONS)
    assert labels == ["optimizer=a"] * 2 + ["optimizer=b"] * 2


def test_the_end_of_a_sweep_names_its_best_run(tmp_path: Path) -> None:
    runs = [*(ended(seed, seed / 10) for seed in (3, 1, 2)), ended(4, 0.0, "failed", "loss became NaN")]
    (tmp_path / "sweep.png").touch()
    assert closing_fields(tmp_path, runs, 61.0, best_run(runs, "min")) == {
        "best run": "seed=1: val/loss 0.1000 at update 5",
        "duration": "1:01",
        "results": f"{tmp_path}/sweep.csv",
        "curves": f"{tmp_path}/sweep.png",
        "compare": f"hydrant compare {tmp_path}",
    }
    best = best_run(runs, "max")
    assert best is not None
    assert best.run == "3"
    few = [ended(1, None, "failed")]
    assert list(closing_fields(tmp_path / "none", few, 1.0, best_run(few, "min"))) == ["duration", "results"]
    close = [ended(seed, value) for seed, value in enumerate([0.9000003, 0.9000001, 0.9000002])]
    fields = closing_fields(tmp_path, close, 1.0, best_run(close, "min"))
    assert fields["best run"] == "seed=1: val/loss 0.90000010 at update 5"


def chosen(folder: Path, words: list[str], values: Sequence[float | None]) -> RunFolder:
    """Write a finished run with these choices, evaluated at updates 1, 2, ...; return its folder."""
    folder.mkdir()
    best = {"metric": "val/loss", "value": values[-1], "num_updates": len(values)}
    (folder / "summary.json").write_text(json.dumps({"status": "finished", "num_updates": 9, "best": best}))
    rows = [{"num_updates": n, "val/loss": value} for n, value in enumerate(values, start=1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return RunFolder(folder, words)


Drawn = list[tuple[dict[str, dict[str, Any]], Path]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """What is drawn: curves by label by title, and the file."""
    calls: Drawn = []

    def keep(panels: dict[str, dict[str, Any]], path: Path, **_: Any) -> None:
        calls.append((panels, path))

    monkeypatch.setattr(picture, "draw_curves", keep)
    return calls


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_settings_are_drawn(mode: str, tmp_path: Path, drawn: Drawn) -> None:
    """The best are those of the mean, not those of the luckiest seed. A run without a result is not drawn."""
    runs = [
        chosen(tmp_path / f"{n}-{seed}", [f"lr={n}", f"seed={seed}"], [1, n + seed * (3 - 2 * n % 7)])
        for n in range(MAX_SETTINGS + 2)
        for seed in (-1, 1)
    ]
    draw_curves_of(tmp_path, [*runs, RunFolder(tmp_path / "queued", ["lr=9", "seed=2"])], mode)
    [(panels, path)] = drawn
    best = range(MAX_SETTINGS) if mode == "min" else range(MAX_SETTINGS + 1, 1, -1)
    title = f"val/loss, the best {MAX_SETTINGS} of {MAX_SETTINGS + 2} settings"
    assert panels == {title: {f"lr={n} (mean of 2 runs)": ([1, 2], [1, n]) for n in best}}
    assert list(panels[title]) == [f"lr={n} (mean of 2 runs)" for n in best]
    assert path == tmp_path / "sweep.png"


def test_seeds_of_one_setting_have_one_entry(tmp_path: Path, drawn: Drawn) -> None:
    """Their mean is that of the updates that all have, and not a number where one of them is none."""
    values = [[0.5, 0.25], [0.25, None, 4.0], [0.75, 0.5, 1.0]]
    runs = [chosen(tmp_path / str(seed), [f"seed={seed}"], v) for seed, v in enumerate(values)]
    draw_curves_of(tmp_path, runs, "min")
    [(panels, _)] = drawn
    updates, means = panels["val/loss"]["mean of 3 runs"]
    assert (updates, means[0]) == ([1, 2], 0.5)
    assert math.isnan(means[1])


@pytest.mark.figures
@pytest.mark.parametrize(
    ("mode", "curves", "shown"),
    [
        ("max", [[0.1, 0.9, 1.0, 1.0, 1.0], [0.1, 0.8, 0.8, 0.8, 0.8]], (0.79, 1.01)),
        ("min", [[1.0, 2.0, 3.0, 3.0, 3.0], [9.0, 2.5, 2.5, 2.5, 2.5]], (0.9, 3.1)),
        ("min", [[0.1] * 5], None),
    ],
    ids=["untrained", "best early", "equal"],
)
def test_what_the_untrained_model_reaches_does_not_hide_the_differences(
    mode: str, curves: Any, shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting has one colour, and the legend one entry for it."""
    figures = list[Any]()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    curves = [*curves, *[curves[-1]] * 20]
    runs = [chosen(tmp_path / f"{n}", [f"lr={n}"], values) for n, values in enumerate(curves)]
    draw_curves_of(tmp_path, runs, mode)
    (axes,) = figures.pop().axes
    assert shown is None or axes.get_ylim() == pytest.approx(shown)
    assert len({line.get_color() for line in axes.lines}) == len(axes.get_legend().get_texts()) == len(runs)


def test_a_sweep_without_results_has_no_picture(tmp_path: Path) -> None:
    draw_curves_of(tmp_path, [RunFolder(tmp_path / "queued", ["seed=1"])], "min")
    assert list(tmp_path.iterdir()) == []
