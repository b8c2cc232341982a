"""Pictures of what a classifier is fed and gets wrong, for those who ask; nobody else pays for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.batch import Batch, Outcome
from hydrant.distributed import World
from hydrant.errors import ConfigError
from hydrant.plotting import draw_confusion, draw_images

Draw = Callable[[Path], None]
"""Writes a PNG."""

Observe = Callable[[Batch, Outcome], None]

When = Literal["end", "evaluation"]

NUM_SAMPLES = 24


class _Mistakes(NamedTuple):
    """Samples that were taken for another class, the worst first; a row a sample."""

    losses: Tensor  # (N,); -inf where there was no mistake
    shares: Tensor  # (N,), of the class that was given
    targets: Tensor  # (N,)
    given: Tensor  # (N,)
    inputs: Tensor  # (N, ...)

    def worst(self) -> _Mistakes:
        order = self.losses.topk(min(NUM_SAMPLES, len(self.losses))).indices
        return _Mistakes(*(values.index_select(0, order) for values in self))

    def join(self, others: _Mistakes) -> _Mistakes:
        return _Mistakes(*(torch.cat(pair) for pair in zip(self, others, strict=True)))


class _Answers:
    """What a classifier gave in one evaluation; on the device, and without waiting for it."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self._num_classes = num_classes
        self._confusion = torch.zeros(num_classes**2, dtype=torch.int64, device=device)
        self._mistakes: _Mistakes | None = None

    def __call__(self, batch: Batch, outcome: Outcome) -> None:
        """Take the answers of a batch."""
        logits, targets = outcome.predictions.float(), batch.targets
        share, given = logits.softmax(dim=1).max(dim=1)
        self._confusion.scatter_add_(0, targets * self._num_classes + given, torch.ones_like(targets))
        losses = F.cross_entropy(logits, targets, reduction="none").nan_to_num(math.inf)
        losses = losses.masked_fill(given == targets, -math.inf)
        mistakes = _Mistakes(losses, share, targets, given, batch.inputs)
        self._mistakes = (mistakes if self._mistakes is None else self._mistakes.join(mistakes)).worst()

    def pictures(self, world: World, total: Callable[[Tensor], Tensor]) -> dict[str, Draw]:
        """Of all ranks together, which all call it; `total` sums over them."""
        confusion = total(self._confusion).view(self._num_classes, self._num_classes).cpu()
        own = None if self._mistakes is None else _Mistakes(*(values.cpu() for values in self._mistakes))
        several = [mistakes for mistakes in world.gather(own) if mistakes is not None]
        pictures: dict[str, Draw] = {"confusion": partial(draw_confusion, confusion)}
        if several:
            worst = _Mistakes(*map(torch.cat, zip(*several, strict=True))).worst()
            worst = _Mistakes(*(values[worst.losses > -math.inf] for values in worst))
            if _are_images(worst.inputs) and len(worst.losses):
                rows = zip(worst.targets.tolist(), worst.given.tolist(), worst.shares.tolist(), strict=True)
                titles = [f"{target}, taken for {given}\n({share:.0%} sure)" for target, given, share in rows]
                pictures["mistakes"] = partial(draw_images, worst.inputs, titles)
        return pictures


class Gallery:
    """Which pictures of a classification are drawn.

    Args:
        when: `evaluation` is after each, `end` after the last one; None is never.
    """

    def __init__(self, when: When | None, num_classes: int, device: torch.device) -> None:
        self._when, self._num_classes, self._device = when, num_classes, device
        self._answers: _Answers | None = None

    @property
    def is_on(self) -> bool:
        return self._when is not None

    def observer(self) -> Observe | None:
        """What is to be told of every batch of an evaluation; None if nothing is drawn of any."""
        self._answers = _Answers(self._num_classes, self._device) if self.is_on else None
        return self._answers

    def pictures(self, world: World, total: Callable[[Tensor], Tensor], *, ends: bool) -> dict[str, Draw]:
        """Of the last evaluation, after which the run `ends` or goes on.

        Ranks call it together; `total` sums over them.
        """
        if self._answers is None or (self._when == "end" and not ends):
            return {}
        return self._answers.pictures(world, total)


def check_pictures(config: Mapping[str, Any], outcome: Outcome, num_classes: int) -> None:
    """Refuse pictures of a task that is no classification, or without evaluations.

    Raises:
        ConfigError: the key to change.
    """
    if config["pictures"] is None:
        return
    if config["eval_every"] is None:
        raise ConfigError("eval_every", "pictures are of evaluations; give one, such as 1ep")
    if outcome.predictions.shape[1:] != (num_classes,):
        told = f"are of a classification, and this task gives no logits of {num_classes} classes; use pictures=null"
        raise ConfigError("pictures", told)


def input_pictures(batch: Batch) -> dict[str, Draw]:
    """The first samples of a batch, as the model gets them; none if they are no images."""
    if not _are_images(batch.inputs):
        return {}
    targets = batch.targets[:NUM_SAMPLES].cpu()
    titles = [_class_told(target) for target in targets]
    return {"inputs": partial(draw_images, batch.inputs[:NUM_SAMPLES].cpu(), titles)}


def _class_told(target: Tensor) -> str:
    """A class number, or the two largest shares of a mixture."""
    if target.ndim == 0:
        return str(int(target))
    shares, classes = target.topk(min(2, len(target)))
    pairs = zip(shares.tolist(), classes.tolist(), strict=True)
    return ", ".join(f"{number}: {share:.0%}" for share, number in pairs if share > 0)


def _are_images(inputs: Tensor) -> bool:
    return inputs.ndim == 4 and inputs.shape[1] in (1, 3)
