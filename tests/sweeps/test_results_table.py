"""The lines that a sweep prints at its end, and its picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hydrant.config.schema import REPETITIONS
from hydrant.records.answers import RunProgress
from hydrant.runs.folder import RunFolder, choices_in
from hydrant.sweeps import picture
from hydrant.sweeps.picture import MAX_SETTINGS, draw_curves_of
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


def drawn_settings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets what is drawn: the settings, the title and the file."""
    drawn = list[Any]()

    def keep(*arguments: Any) -> None:
        drawn.extend(arguments)

    monkeypatch.setattr(picture, "draw_settings", keep)
    return drawn


def chosen(folder: Path, words: list[str], values: Sequence[float | None]) -> RunFolder:
    """Write a finished run with these choices, evaluated at updates 1, 2, ...; return its folder."""
    folder.mkdir()
    best = {"metric": "val/loss", "value": values[-1], "num_updates": len(values)}
    (folder / "summary.json").write_text(json.dumps({"status": "finished", "num_updates": 9, "best": best}))
    rows = [{"num_updates": n, "val/loss": value} for n, value in enumerate(values, start=1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return RunFolder(folder, words)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_settings_are_drawn_with_all_their_seeds(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best are those of the mean, not those of the luckiest seed. A run without a result is not drawn."""
    drawn = drawn_settings(monkeypatch)
    runs = [
        chosen(tmp_path / f"{n}-{seed}", [f"lr={n}", f"seed={seed}"], [1, n + seed * (3 - 2 * n % 7)])
        for n in range(MAX_SETTINGS + 2)
        for seed in (-1, 1)
    ]
    draw_curves_of(tmp_path, [*runs, RunFolder(tmp_path / "queued", ["lr=9", "seed=2"])], mode)
    settings, title, path, _ = drawn
    best = range(MAX_SETTINGS) if mode == "min" else range(MAX_SETTINGS + 1, 1, -1)
    assert [setting.label for setting in settings] == [f"lr={n}" for n in best]
    assert [setting.mean for setting in settings] == [([1, 2], [1, n]) for n in best]
    assert title == f"val/loss, the best {MAX_SETTINGS} of {MAX_SETTINGS + 2} settings"
    assert path == tmp_path / "sweep.png"


def test_seeds_of_one_setting_have_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their mean is that of the updates that all have, and not a number where one of them is none."""
    drawn = drawn_settings(monkeypatch)
    values = [[0.5, 0.25], [0.25, None, 4.0], [0.75, 0.5, 1.0]]
    runs = [chosen(tmp_path / str(seed), [f"seed={seed}"], v) for seed, v in enumerate(values)]
    draw_curves_of(tmp_path, runs, "min")
    ((setting,), title, *_) = drawn
    assert (setting.text, title) == ("mean of 3 runs", "val/loss")
    assert setting.mean[0] == [1, 2]
    assert setting.mean[1][0] == 0.5
    assert math.isnan(setting.mean[1][1])


def test_a_setting_has_one_colour_and_the_legend_one_entry_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run is a setting too, and so is each of more settings than there are distinct colours."""
    figures = list[Any]()

    def keep(figure: Any, *_: Any, **__: Any) -> None:
        figures.append(figure)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    for number, seeds in ((1, 5), (4, 3), (30, 1)):
        curves = [([1, 2], [seed, n]) for seed in range(seeds) for n in range(2)]
        settings = [picture.Setting(f"lr={n}", curves[:seeds]) for n in range(number)]
        picture.draw_settings(settings, "val/loss", tmp_path / "sweep.png", "min")
        (axes,) = figures.pop().axes
        colours = [line.get_color() for line in axes.lines]
        assert len(set(colours)) == number
        assert len(colours) == number * (seeds + 1 if seeds > 1 else 1)
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [s.text for s in settings]


@pytest.mark.parametrize(
    ("mode", "curves", "shown"),
    [
        ("max", [([0, 50, 100], [0.1, 0.9, 1.0]), ([0, 50, 100], [0.1, 0.8, math.nan])], (0.79, 1.01)),
        ("min", [([0, 2, 4], [8.0, 5.0, 3.0]), ([0, 50, 100], [9.0, 2.0, 1.0])], (0.8, 5.2)),
        ("min", [([0, 20, 60, 100], [9.0, 1.0, 2.0, 3.0])], (0.9, 3.1)),
        ("min", [([0, 50, 100], [0.1, math.nan, math.nan])], None),
        ("min", [([], [])], None),
    ],
    ids=["untrained", "short", "best early", "no number", "nothing"],
)
def test_what_the_untrained_model_reaches_does_not_hide_the_differences(
    mode: str, curves: Any, shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = list[Any]()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    settings = [picture.Setting(f"lr={n}", [curve]) for n, curve in enumerate(curves)]
    picture.draw_settings(settings, "metric", tmp_path / "sweep.png", mode)
    (axes,) = figures.pop().axes
    assert shown is None or axes.get_ylim() == pytest.approx(shown)


def test_a_sweep_without_results_has_no_picture(tmp_path: Path) -> None:
    draw_curves_of(tmp_path, [RunFolder(tmp_path / "queued", ["seed=1"])], "min")
    assert list(tmp_path.iterdir()) == []
