"""Pictures of the inputs and mistakes of a classifier: the right samples, from all ranks, when configured."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from marks import slow
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from training_runs import Train

from hydrant import load_run
from hydrant.batch import Batch, Outcome
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.extensions.pictures.predictions import NUM_SAMPLES, Predictions, input_pictures
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.micro_batch import scratch_trainer

TINY = ("duration=2", "log_every=2", "eval_every=2", "save_every=null", "model.hidden=[8]", "tracker=local")
TRAINER: Any = None
ONE_RANK: Any = SimpleNamespace(all_gather=lambda value: [value])


def evaluated(
    predicted: list[int], targets: list[int], logits: list[float], names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the pictures of an evaluation with a sample in each batch; `logits` are those of the predicted classes."""
    predictions = Predictions(names)
    for prediction, target, logit in zip(predicted, targets, logits, strict=True):
        output = torch.zeros(1, 3)
        output[0, prediction] = logit
        inputs = torch.full((1, 1, 2, 2), float(target))
        predictions.add(TRAINER, Batch(inputs, torch.tensor([target])), Outcome({}, {}, output, 1))
    return predictions.pictures(ONE_RANK, lambda values: values)


def test_every_prediction_is_counted_and_the_worst_mistakes_come_first() -> None:
    result = evaluated([0, 1, 2, 0, 1], [0, 0, 2, 2, 0], [9.0, 1.0, 1.0, 5.0, 3.0])
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
    result = evaluated([1, 1], [2, 1], [9.0, 1.0], names)
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
    result = evaluated([1] * 40, [0] * 40, [float(n) for n in range(40)])
    assert len(result["mistakes"].args[0]) == NUM_SAMPLES


IMAGES, VECTORS, DICTS = torch.zeros(4, 1, 8, 8), torch.zeros(4, 5), {"ids": torch.zeros(4, 5)}
CLASSES, LOGITS = torch.zeros(4, dtype=torch.long), torch.tensor([[0.0, 9.0, 0.0]] * 4)
PIXELS, OF_PIXELS = torch.zeros(4, 8, 8, dtype=torch.long), torch.zeros(4, 3, 8, 8)


@pytest.mark.parametrize(
    ("inputs", "targets", "predictions", "names"),
    [
        (IMAGES, CLASSES, LOGITS, ["confusion", "inputs", "mistakes"]),
        (VECTORS, CLASSES, LOGITS, ["confusion"]),
        (IMAGES, PIXELS, OF_PIXELS, ["confusion", "inputs"]),
        (IMAGES, LOGITS.long(), LOGITS, ["inputs"]),  # several labels
        (IMAGES, LOGITS, LOGITS, ["inputs"]),  # numbers
        (DICTS, DICTS, DICTS, []),
    ],
    ids=["classes", "vectors", "pixels", "labels", "numbers", "dicts"],
)
def test_what_does_not_fit_is_left_out(inputs: Any, targets: Any, predictions: Any, names: list[str]) -> None:
    batch, of_all = Batch(inputs, targets), Predictions(None)
    of_all.add(TRAINER, batch, Outcome({}, {}, predictions, 4))
    drawn = of_all.pictures(ONE_RANK, lambda values: values) | input_pictures(batch)
    assert sorted(drawn) == names


def test_no_host_sync_during_an_evaluation() -> None:
    with FakeTensorMode():
        predictions = Predictions(None)
        for size in (64, 64, 7):
            batch = Batch(torch.empty(size, 1, 8, 8), torch.empty(size, dtype=torch.int64))
            predictions.add(TRAINER, batch, Outcome({}, {}, torch.empty(size, 10), size))


def test_a_run_without_pictures_observes_no_batch() -> None:
    for when, listens in ((None, False), ("end", True)):
        plan = prepare(check(compose(["duration=2", f"pictures={when or 'null'}"])))
        with scratch_trainer(plan) as trainer:
            plan.hooks.call("on_start", trainer)
            assert plan.hooks.listens("on_evaluation_batch") == listens


@pytest.mark.figures
@pytest.mark.parametrize(("when", "updates"), [("end", [2]), *slow(("evaluation", [0, 2]))])
def test_pictures_are_written_to_the_run_folder(when: str, updates: list[int], train: Train) -> None:
    folder = train(*TINY, f"pictures={when}", "mixing=mixup")
    for name, expected in {"confusion": updates, "mistakes": updates, "inputs": [0]}.items():
        files = sorted((folder / "pictures" / name).iterdir())
        assert [file.name for file in files] == [f"update_{n:08d}.png" for n in expected]
        with Image.open(files[-1]) as picture:
            assert len(set(picture.convert("L").tobytes())) > 5  # something is drawn
    assert load_run(folder).pictures.keys() == {"confusion", "curves", "inputs", "mistakes", "schedule"}


@pytest.mark.slow
def test_the_last_evaluation_of_a_run_that_stops_early_is_drawn(train: Train) -> None:
    folder = train(*TINY, "duration=40", "pictures=end", "patience=1", "optimizer.lr=1e-9")
    (file,) = (folder / "pictures" / "confusion").iterdir()
    assert file.name == "update_00000004.png"
