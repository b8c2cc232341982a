"""The lines that a sweep prints at its end, and its picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hydrant.runs.folder import RunFolder
from hydrant.sweeps import picture
from hydrant.sweeps.picture import MAX_SETTINGS, draw_curves_of
from hydrant.sweeps.results_table import MAX_PRINTED, closing_fields, print_table, settings_of


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


def test_a_setting_has_all_of_its_repetitions(tmp_path: Path) -> None:
    words = [
        [f"optimizer={name}", f"fold={n}", f"fold_seed={n}", f"seed={n}"] for name in "ab" for n in (0, 1)
    ]
    runs = [RunFolder(tmp_path, own) for own in words]
    assert settings_of(runs) == ["optimizer=a"] * 2 + ["optimizer=b"] * 2


def test_a_few_runs_are_printed_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [finished(tmp_path / str(seed), seed, seed % 7) for seed in range(MAX_PRINTED)]
    print_table(tmp_path, runs, [], "min")
    lines = capsys.readouterr().out.strip().splitlines()[1:]
    assert [line.split()[0] for line in lines] == [f"seed={seed}" for seed in range(MAX_PRINTED)]


def test_results_that_differ_in_late_digits_are_shown_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [0.9000003, 0.9000001, 0.9000002]
    runs = [finished(tmp_path / str(seed), seed, value) for seed, value in enumerate(results)]
    print_table(tmp_path, runs, [], "min")
    printed = capsys.readouterr().out
    assert all(f"val/loss {value:.8f} at update 5" in printed for value in results)
    assert closing_fields(tmp_path, runs, 1.0, "min")["best run"] == "seed=1: val/loss 0.90000010 at update 5"


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
