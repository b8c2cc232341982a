"""sweep.png shows the mean of each setting, or of the best ones."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hydrant.extensions import pictures
from hydrant.extensions.pictures import MAX_SETTINGS, draw_sweep
from hydrant.runs.folder import RunFolder


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

    monkeypatch.setattr(pictures, "draw_curves", keep)
    return calls


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_settings_are_drawn(mode: str, tmp_path: Path, drawn: Drawn) -> None:
    """The best are those of the mean, not those of the luckiest seed. A run without a result is not drawn."""
    runs = [
        chosen(tmp_path / f"{n}-{seed}", [f"lr={n}", f"seed={seed}"], [1, n + seed * (3 - 2 * n % 7)])
        for n in range(MAX_SETTINGS + 2)
        for seed in (-1, 1)
    ]
    draw_sweep(tmp_path, [*runs, RunFolder(tmp_path / "queued", ["lr=9", "seed=2"])], mode)
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
    draw_sweep(tmp_path, runs, "min")
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
    draw_sweep(tmp_path, runs, mode)
    (axes,) = figures.pop().axes
    assert shown is None or axes.get_ylim() == pytest.approx(shown)
    assert len({line.get_color() for line in axes.lines}) == len(axes.get_legend().get_texts()) == len(runs)


def test_a_sweep_without_results_has_no_picture(tmp_path: Path) -> None:
    draw_sweep(tmp_path, [RunFolder(tmp_path / "queued", ["seed=1"])], "min")
    assert list(tmp_path.iterdir()) == []
