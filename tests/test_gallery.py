"""Pictures of what a classifier is fed and gets wrong: the right samples, from all ranks, when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from hydrant.batch import Batch, Outcome
from hydrant.gallery import NUM_SAMPLES, Gallery, input_pictures

TINY = ("duration=2", "log_every=2", "eval_every=2", "save_every=null", "model.hidden=[8]", "tracker=local")
ALONE: Any = SimpleNamespace(gather=lambda value: [value])


def answers(when: Any, given: list[int], targets: list[int], sure: list[float], gallery: Gallery) -> None:
    """Tell a gallery of an evaluation of one sample a batch."""
    observe = gallery.observer()
    assert observe is not None
    for answer, target, logit in zip(given, targets, sure, strict=True):
        logits = torch.zeros(1, 3)
        logits[0, answer] = logit
        inputs = torch.full((1, 1, 2, 2), float(target))
        observe(Batch(inputs, torch.tensor([target])), Outcome({}, {}, logits, 1))


def drawn(gallery: Gallery, *, ends: bool = True) -> dict[str, partial[None]]:
    pictures: Any = gallery.pictures(ALONE, lambda values: values, ends=ends)
    return pictures


def test_every_answer_is_counted_and_the_worst_mistakes_come_first() -> None:
    gallery = Gallery("evaluation", 3, torch.device("cpu"))
    answers("evaluation", [0, 1, 2, 0, 1], [0, 0, 2, 2, 0], [9.0, 1.0, 1.0, 5.0, 3.0], gallery)
    pictures = drawn(gallery)
    assert pictures["confusion"].args[0].tolist() == [[1, 2, 0], [0, 0, 0], [1, 0, 1]]
    images, titles = pictures["mistakes"].args
    assert [title.split("\n")[0] for title in titles] == [
        "2, taken for 0",
        "0, taken for 1",
        "0, taken for 1",
    ]
    assert titles[0].endswith("(99% sure)")
    assert images[:, 0, 0, 0].tolist() == [2, 0, 0]


def test_as_many_mistakes_as_fit() -> None:
    gallery = Gallery("end", 3, torch.device("cpu"))
    answers("end", [1] * 40, [0] * 40, [float(n) for n in range(40)], gallery)
    assert drawn(gallery, ends=False) == {}
    assert len(drawn(gallery)["mistakes"].args[0]) == NUM_SAMPLES


def test_no_mistakes_no_images_and_nobody_who_asks() -> None:
    gallery = Gallery("end", 3, torch.device("cpu"))
    answers("end", [1, 2], [1, 2], [1.0, 1.0], gallery)
    assert drawn(gallery).keys() == {"confusion"}
    assert input_pictures(Batch(torch.zeros(2, 5), torch.zeros(2))) == {}
    quiet = Gallery(None, 3, torch.device("cpu"))
    assert quiet.observer() is None
    assert drawn(quiet) == {}


def test_nothing_waits_for_the_device_during_an_evaluation() -> None:
    with FakeTensorMode():
        observe = Gallery("end", 10, torch.device("cpu")).observer()
        assert observe is not None
        for size in (64, 64, 7):
            batch = Batch(torch.empty(size, 1, 8, 8), torch.empty(size, dtype=torch.int64))
            observe(batch, Outcome({}, {}, torch.empty(size, 10), size))


@pytest.mark.parametrize(
    ("when", "updates"),
    [
        pytest.param("end", [2], marks=pytest.mark.slow, id="end"),
        pytest.param("evaluation", [0, 2], id="each"),
    ],
)
def test_they_lie_in_the_run_folder(when: str, updates: list[int], train: Callable[..., Path]) -> None:
    folder = train(*TINY, f"pictures={when}", "mixing=mixup")
    for name, expected in {"confusion": updates, "mistakes": updates, "inputs": [0]}.items():
        files = sorted((folder / "pictures" / name).iterdir())
        assert [file.name for file in files] == [f"update_{n:08d}.png" for n in expected]
        with Image.open(files[-1]) as picture:
            assert len(set(picture.convert("L").tobytes())) > 5  # something is drawn


@pytest.mark.slow
def test_the_last_evaluation_of_a_run_that_stops_early_is_drawn(train: Callable[..., Path]) -> None:
    folder = train(*TINY, "duration=40", "pictures=end", "patience=1", "optimizer.lr=1e-9")
    (file,) = (folder / "pictures" / "confusion").iterdir()
    assert file.name == "update_00000004.png"
