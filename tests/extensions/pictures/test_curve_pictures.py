"""`curves.png` shows what a run has logged, with a panel for each kind of number."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from run_folders import summary
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.extensions import pictures
from hydrant.extensions.pictures.plotting import draw_curves
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
    pictures.draw_run(ROWS, "val/accuracy", Path("curves.png"))
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
    pictures.draw_run(ROWS[:1], metric, Path("curves.png"))
    assert list(panels) == titles


def test_a_run_without_rows_has_no_picture_and_one_that_cannot_be_drawn_no_error(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pictures.draw_run([], None, tmp_path / "curves.png")
    assert list(tmp_path.glob("*.png")) == []

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pictures, "draw_run", fail)
    words = ("tracker=local", "model.hidden=[8]", "duration=2", "log_every=1")
    folder = train(*words)
    assert "curves.png cannot be written: No space left on device" in capsys.readouterr().out
    assert not (folder / "curves.png").exists()
    monkeypatch.setattr("hydrant.extensions.pictures.Pictures.on_result", fail)
    assert summary(train(*words, name="other"))["status"] == "finished"
    assert "pictures.on_result: OSError: [Errno 28]" in capsys.readouterr().out


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
