"""Pictures of the inputs and mistakes of a classifier: the right samples, from all ranks, when configured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from training_runs import Train

from hydrant.batch import Batch, Outcome
from hydrant.extensions.pictures.plotting import NUM_SAMPLES, EvaluationPictures, input_pictures

TINY = ("duration=2", "log_every=2", "eval_every=2", "save_every=null", "model.hidden=[8]", "tracker=local")
ONE_RANK: Any = SimpleNamespace(all_gather=lambda value: [value])


def evaluate(
    pictures: EvaluationPictures, predicted: list[int], targets: list[int], logits: list[float]
) -> None:
    """Observe an evaluation with one sample in each batch; `logits` are those of the predicted classes."""
    observe = pictures.observer()
    assert observe is not None
    for prediction, target, logit in zip(predicted, targets, logits, strict=True):
        predictions = torch.zeros(1, 3)
        predictions[0, prediction] = logit
        inputs = torch.full((1, 1, 2, 2), float(target))
        observe(Batch(inputs, torch.tensor([target])), Outcome({}, {}, predictions, 1))


def drawn(pictures: EvaluationPictures, *, is_last: bool = True) -> dict[str, partial[None]]:
    result: Any = pictures.pictures(ONE_RANK, lambda values: values, is_last=is_last)
    return result


def test_every_prediction_is_counted_and_the_worst_mistakes_come_first() -> None:
    pictures = EvaluationPictures("evaluation", None)
    evaluate(pictures, [0, 1, 2, 0, 1], [0, 0, 2, 2, 0], [9.0, 1.0, 1.0, 5.0, 3.0])
    result = drawn(pictures)
    assert result["confusion"].args[0].tolist() == [[1, 2, 0], [0, 0, 0], [1, 0, 1]]
    images, titles = result["mistakes"].args
    assert [title.split("\n")[0] for title in titles] == [
        "2, predicted 0",
        "0, predicted 1",
        "0, predicted 1",
    ]
    assert titles[0].endswith("(99% sure)")
    assert images[:, 0, 0, 0].tolist() == [2, 0, 0]


@pytest.mark.figures
def test_classes_have_their_names(tmp_path: Path) -> None:
    names = ("cat", "dog", "a very long name of a class")
    pictures = EvaluationPictures("end", names)
    evaluate(pictures, [1, 1], [2, 1], [9.0, 1.0])
    result = drawn(pictures)
    assert result["mistakes"].args[1] == ["a very long nam…\npredicted dog\n(>99% sure)"]
    assert result["confusion"].args[1] == names
    result["confusion"](tmp_path / "confusion.png")
    batch = Batch(torch.zeros(2, 1, 4, 4), torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]))
    for targets, titles in (
        (batch.targets, ["dog: 75%, cat: 25%", "a very long nam…: 100%"]),
        (torch.tensor([1, 0]), ["dog", "cat"]),
        (torch.tensor([[0, 1, 1], [1, 0, 0]]), ["dog, a very long nam…", "cat"]),
    ):
        drawing: Any = input_pictures(batch._replace(targets=targets), names)["inputs"]
        assert drawing.args[1] == titles


def test_the_number_of_drawn_mistakes_is_limited() -> None:
    pictures = EvaluationPictures("end", None)
    evaluate(pictures, [1] * 40, [0] * 40, [float(n) for n in range(40)])
    assert drawn(pictures, is_last=False) == {}
    assert len(drawn(pictures)["mistakes"].args[0]) == NUM_SAMPLES


def test_no_mistakes_no_images_and_no_pictures_configured() -> None:
    pictures = EvaluationPictures("end", None)
    evaluate(pictures, [1, 2], [1, 2], [1.0, 1.0])
    assert drawn(pictures).keys() == {"confusion"}
    assert input_pictures(Batch(torch.zeros(2, 5), torch.zeros(2))) == {}
    disabled = EvaluationPictures(None, None)
    assert disabled.observer() is None
    assert drawn(disabled) == {}


def test_no_host_sync_during_an_evaluation() -> None:
    with FakeTensorMode():
        observe = EvaluationPictures("end", None).observer()
        assert observe is not None
        for size in (64, 64, 7):
            batch = Batch(torch.empty(size, 1, 8, 8), torch.empty(size, dtype=torch.int64))
            observe(batch, Outcome({}, {}, torch.empty(size, 10), size))


@pytest.mark.figures
@pytest.mark.parametrize(
    ("when", "updates"),
    [
        pytest.param("end", [2], id="end"),
        pytest.param("evaluation", [0, 2], marks=pytest.mark.slow, id="each"),
    ],
)
def test_pictures_are_written_to_the_run_folder(when: str, updates: list[int], train: Train) -> None:
    folder = train(*TINY, f"pictures={when}", "mixing=mixup")
    for name, expected in {"confusion": updates, "mistakes": updates, "inputs": [0]}.items():
        files = sorted((folder / "pictures" / name).iterdir())
        assert [file.name for file in files] == [f"update_{n:08d}.png" for n in expected]
        with Image.open(files[-1]) as picture:
            assert len(set(picture.convert("L").tobytes())) > 5  # something is drawn


@pytest.mark.slow
def test_the_last_evaluation_of_a_run_that_stops_early_is_drawn(train: Train) -> None:
    folder = train(*TINY, "duration=40", "pictures=end", "patience=1", "optimizer.lr=1e-9")
    (file,) = (folder / "pictures" / "confusion").iterdir()
    assert file.name == "update_00000004.png"
