"""`curves.png` shows each kind of number that a run has logged; `sweep.png` shows the settings of a sweep."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.extensions import pictures
from hydrant.extensions.pictures import MAX_SETTINGS, draw_sweep
from hydrant.extensions.pictures.plotting import draw_curves
from hydrant.runs.folder import RunFolder
from hydrant.training.prepare.build import prepare

VIT = ("model=timm", "model.name=test_vit", "data=synthetic", "duration=20", "scheduler.warmup=50%")
ROWS: list[dict[str, Any]] = [
    {"num_updates": 0, "val/loss": 2.0, "val/accuracy": 0.1},
    {"num_updates": 5, "train/loss": 1.5, "optim/lr": 0.1, "optim/lr/head": 0.2, "optim/grad_norm": None},
    {
        "num_updates": 10,
        "train/loss": 1.0,
        "optim/lr": 0.0,
        "optim/lr/head": 0.1,
        "val/loss": 1.0,
        "val/accuracy": 0.9,
    },
]


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    drawn = dict[str, Any]()
    monkeypatch.setattr(pictures, "draw_curves", lambda panels, *_, **__: drawn.update(panels))
    return drawn


def test_each_kind_of_number_has_a_panel(panels: dict[str, Any]) -> None:
    pictures.draw_run(ROWS, "val/accuracy", "max", Path("curves.png"))
    (x, (norm,)) = panels.pop("norm of the gradients")[""]
    assert x == [5]
    assert math.isnan(norm)
    assert panels == {
        "loss": {"train/loss": ([5, 10], [1.5, 1.0]), "val/loss": ([0, 10], [2.0, 1.0])},
        "val/accuracy": {"": ([0, 10], [0.1, 0.9])},
        "learning rate": {"optim/lr": ([5, 10], [0.1, 0.0]), "optim/lr/head": ([5, 10], [0.2, 0.1])},
    }


@pytest.mark.parametrize(
    ("metric", "titles"), [("val/loss", ["loss"]), (None, ["loss"]), ("val/other", ["loss"])]
)
def test_a_metric_that_is_a_loss_or_not_logged_has_no_panel(
    metric: str | None, titles: list[str], panels: dict[str, Any]
) -> None:
    pictures.draw_run(ROWS[:1], metric, "min", Path("curves.png"))
    assert list(panels) == titles


def test_a_run_without_rows_has_no_picture_and_one_that_cannot_be_drawn_no_error(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pictures.draw_run([], None, "min", tmp_path / "curves.png")
    assert list(tmp_path.glob("*.png")) == []

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pictures, "draw_run", fail)
    words = ("tracker=local", "model.hidden=[8]", "duration=2", "log_every=1")
    folder = train(*words)
    assert "curves.png cannot be written: No space left on device" in capsys.readouterr().out
    assert not (folder / "curves.png").exists()


@pytest.mark.slow
@pytest.mark.figures
def test_a_run_names_its_picture_and_those_of_a_sweep_have_none(
    train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tracker=local", "model.hidden=[8]", "duration=2", "log_every=1")
    assert (train(*words) / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "curves      outputs/run/curves.png" in capsys.readouterr().out
    silent = train(*words, "log_every=null", "eval_every=null", name="silent")
    assert not (silent / "curves.png").exists()
    assert "curves" not in capsys.readouterr().out
    train("--multirun", *words, "hydra.sweep.dir=sweep", "seed=0,1")
    assert len(list((workdir / "sweep").glob("*/schedule.png"))) == 2
    assert list((workdir / "sweep").glob("*/curves.png")) == []


@pytest.mark.figures
def test_equal_schedules_are_drawn_once_and_the_layers_of_a_model_share_a_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[str]()

    def draw(panels: dict[str, Any], file: Any) -> None:
        drawn.extend(panels)
        draw_curves(panels, file)

    def height(name: str, *words: str) -> int:
        plan = prepare(check(compose([*VIT, *words])), is_preview=True)
        pictures.draw_schedules(plan, tmp_path / name)
        with Image.open(tmp_path / name) as picture:
            return picture.height  # the legend beside the panel makes one wider

    monkeypatch.setattr(pictures, "draw_curves", draw)
    layers = height("layers.png", "param_groups.layer_decay=0.75", "param_groups.no_decay=true")
    assert layers == height("one.png") == height("again.png", "seed=1")
    assert drawn == ["lr", "lr"]
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "again.png").read_bytes()


def chosen(folder: Path, words: list[str], values: Sequence[float | None]) -> RunFolder:
    """Write a finished run with these choices, evaluated at updates 1, 2, ...; return its folder."""
    folder.mkdir()
    best = {"metric": "val/loss", "value": values[-1], "num_updates": len(values)}
    (folder / "summary.json").write_text(json.dumps({"status": "finished", "num_updates": 9, "best": best}))
    rows = [{"num_updates": n, "val/loss": value} for n, value in enumerate(values, start=1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return RunFolder(folder, words)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_settings_are_drawn(mode: str, tmp_path: Path, panels: dict[str, Any]) -> None:
    """The best are those of the mean, not those of the luckiest seed. A run without a result is not drawn."""
    runs = [
        chosen(tmp_path / f"{n}-{seed}", [f"lr={n}", f"seed={seed}"], [1, n + seed * (3 - 2 * n % 7)])
        for n in range(MAX_SETTINGS + 2)
        for seed in (-1, 1)
    ]
    draw_sweep(tmp_path, [*runs, RunFolder(tmp_path / "queued", ["lr=9", "seed=2"])], mode)
    best = range(MAX_SETTINGS) if mode == "min" else range(MAX_SETTINGS + 1, 1, -1)
    title = f"val/loss by lr, the best {MAX_SETTINGS} of {MAX_SETTINGS + 2} settings"
    assert panels == {title: {f"{n} (mean of 2 runs)": ([1, 2], [1, n]) for n in best}}
    assert list(panels[title]) == [f"{n} (mean of 2 runs)" for n in best]


def test_seeds_of_one_setting_have_one_entry(tmp_path: Path, panels: dict[str, Any]) -> None:
    """Their mean is that of the updates that all have, and not a number where one of them is none."""
    values = [[0.5, 0.25], [0.25, None, 4.0], [0.75, 0.5, 1.0]]
    runs = [chosen(tmp_path / str(seed), [f"seed={seed}"], v) for seed, v in enumerate(values)]
    draw_sweep(tmp_path, runs, "min")
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
    """Each setting has one colour, and the legend one entry for it. A run shows the same range as a sweep."""
    figures = list[Any]()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    curves = [*curves, *[curves[-1]] * 20]
    runs = [chosen(tmp_path / f"{n}", [f"lr={n}"], values) for n, values in enumerate(curves)]
    draw_sweep(tmp_path, runs, mode)
    (axes,) = figures.pop().axes
    assert shown is None or axes.get_ylim() == pytest.approx(shown)
    low, high = axes.get_ylim()
    is_cut = any(value < low or value > high for values in curves for value in values)
    assert (axes.get_title() == "val/loss by lr (first values outside)") == is_cut
    assert len({line.get_color() for line in axes.lines}) == len(axes.get_legend().get_texts()) == len(runs)
    widths = [line.get_linewidth() for line in axes.lines]
    assert widths == sorted(set(widths), reverse=True)  # of equal curves, each is seen
    rows = [{"num_updates": n, "val/x": value} for n, value in enumerate(curves[0], start=1)]
    pictures.draw_run(rows, "val/x", mode, tmp_path / "curves.png")
    draw_sweep(tmp_path, runs[:1], mode)
    of_sweep, of_run = (figures.pop().axes[0].get_ylim() for _ in range(2))
    least, most = min(curves[0]), max(curves[0])  # few points, which are all shown
    assert of_sweep[0] == of_run[0] <= least <= most <= of_run[1] == of_sweep[1]


def test_a_sweep_without_results_has_no_picture(tmp_path: Path) -> None:
    draw_sweep(tmp_path, [RunFolder(tmp_path / "queued", ["seed=1"])], "min")
    assert list(tmp_path.iterdir()) == []
