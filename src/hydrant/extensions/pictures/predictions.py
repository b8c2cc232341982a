"""Pictures of the inputs, of a confusion matrix and of the worst mistakes of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.batch import Batch, Outcome
from hydrant.extensions.pictures.plotting import draw_confusion, draw_images
from hydrant.terminal.text import percent
from hydrant.training.distributed.world import World
from hydrant.training.hooks import Draw
from hydrant.training.loop import is_over
from hydrant.training.trainer import Trainer

NUM_SAMPLES = 24
"""The most samples in a picture."""
_MAX_CLASSES = 2000  # whose confusion matrix takes 32 MB
_NAME_WIDTH = 16  # characters of a class name above an image


class _Mistakes(NamedTuple):
    """Wrongly classified samples, the worst first."""

    losses: Tensor  # (N,); -inf for a correct prediction
    probabilities: Tensor  # (N,), of the predicted class
    targets: Tensor  # (N,)
    predicted: Tensor  # (N,)
    inputs: Tensor  # (N, C, H, W); if the inputs are no images, not used

    def worst(self) -> _Mistakes:
        order = self.losses.topk(min(NUM_SAMPLES, len(self.losses))).indices
        return _Mistakes(*(values.index_select(0, order) for values in self))

    def join(self, more: _Mistakes) -> _Mistakes:
        return _Mistakes(*(torch.cat(pair) for pair in zip(self, more, strict=True)))


class Predictions:
    """The confusion matrix and the worst mistakes of one evaluation, kept on the device without a host sync.

    Targets that are no class, such as -100, do not count. If a sample has several targets, such as pixels, there is
    only the confusion matrix.
    """

    def __init__(self, class_names: Sequence[str] | None, when: Literal["end", "evaluation"] = "end") -> None:
        self._class_names, self._when = class_names, when
        self._clear()

    def _clear(self) -> None:
        self._num_classes = 0
        self._counts: Tensor | None = None  # of pairs of classes; the last: no class
        self._mistakes: _Mistakes | None = None

    def add(self, trainer: Trainer, batch: Batch, outcome: Outcome) -> None:
        """Add the predictions of a batch, if they are logits of classes."""
        num_classes = _num_classes(batch.targets, outcome.predictions)
        if num_classes is None or num_classes > _MAX_CLASSES:
            return
        logits, targets = cast("Tensor", outcome.predictions).float(), batch.targets.long()
        if self._counts is None:
            self._num_classes = num_classes
            self._counts = torch.zeros(num_classes**2 + 1, dtype=torch.int64, device=logits.device)
        probabilities, predicted = logits.softmax(dim=1).max(dim=1)
        is_class = (targets >= 0) & (targets < self._num_classes)
        pairs = (targets * self._num_classes + predicted).where(is_class, self._num_classes**2).flatten()
        self._counts.scatter_add_(0, pairs, torch.ones_like(pairs))
        if targets.ndim > 1:
            return
        classes = targets.clamp(0, self._num_classes - 1)
        losses = F.cross_entropy(logits, classes, reduction="none").nan_to_num(math.inf)
        losses = losses.masked_fill((predicted == targets) | ~is_class, -math.inf)
        shown = batch.inputs if _are_images(batch.inputs) else targets
        mistakes = _Mistakes(losses, probabilities, targets, predicted, shown)
        self._mistakes = (mistakes if self._mistakes is None else self._mistakes.join(mistakes)).worst()

    def log(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """Log the pictures of an evaluation, or of the last one only, and forget it."""
        plan = trainer.plan
        if self._when == "evaluation" or is_over(trainer):
            for name, draw in self.pictures(plan.world, plan.parallel.all_reduce).items():
                trainer.logger.picture(name, draw)
        self._clear()

    def pictures(self, world: World, all_reduce: Callable[[Tensor], Tensor]) -> dict[str, Draw]:
        """Return the pictures of the predictions of all ranks, which call this together."""
        if self._counts is None:
            return {}
        confusion = all_reduce(self._counts)[:-1].cpu().view(self._num_classes, self._num_classes)
        mistakes = None if self._mistakes is None else _Mistakes(*(values.cpu() for values in self._mistakes))
        per_rank = [part for part in world.all_gather(mistakes) if part is not None]
        pictures: dict[str, Draw] = {"confusion": partial(draw_confusion, confusion, self._class_names)}
        if per_rank:
            worst = _Mistakes(*map(torch.cat, zip(*per_rank, strict=True))).worst()
            worst = _Mistakes(*(values[worst.losses > -math.inf] for values in worst))
            if _are_images(worst.inputs) and len(worst.losses):
                titles = _mistake_titles(worst, self._class_names)
                pictures["mistakes"] = partial(draw_images, worst.inputs, titles)
        return pictures


def _mistake_titles(mistakes: _Mistakes, class_names: Sequence[str] | None) -> list[str]:
    columns = (mistakes.targets, mistakes.predicted, mistakes.probabilities)
    rows = [
        (_class_name(class_names, target), _class_name(class_names, predicted), probability)
        for target, predicted, probability in zip(*(column.tolist() for column in columns), strict=True)
    ]
    is_short = max(len(name) for row in rows for name in row[:2]) <= 3
    between = ", " if is_short else "\n"
    return [f"{target}{between}predicted {predicted}\n({percent(p)} sure)" for target, predicted, p in rows]


def _class_name(class_names: Sequence[str] | None, number: int) -> str:
    """Return the name of a class, cut to the width of an image; its number if it has none."""
    names = class_names or ()
    name = names[number] if 0 <= number < len(names) else str(number)
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"


def _num_classes(targets: Any, predictions: Any) -> int | None:
    """Return C if the targets are class indices, (B, ...), and the predictions their logits, (B, C, ...)."""
    if not (isinstance(targets, Tensor) and isinstance(predictions, Tensor)):
        return None
    is_index = not (targets.is_floating_point() or targets.is_complex() or targets.dtype is torch.bool)
    shape = predictions.shape
    fits = predictions.ndim > 1 and shape[1] > 1 and targets.shape == (shape[0], *shape[2:])
    return shape[1] if is_index and fits else None


def log_inputs(trainer: Trainer) -> None:
    """Log the first samples of the next update as the model receives them."""
    if not is_over(trainer):  # else the start completes what a killed run did not write
        for name, draw in input_pictures(trainer.first_batch(), trainer.plan.data.class_names).items():
            trainer.logger.picture(name, draw)


def input_pictures(batch: Batch, class_names: Sequence[str] | None = None) -> dict[str, Draw]:
    """Return a picture of the first samples of a batch as the model receives them; {} if they are not images."""
    if not _are_images(batch.inputs):
        return {}
    images, targets = batch.inputs[:NUM_SAMPLES].cpu(), batch.targets
    has_titles = isinstance(targets, Tensor) and 1 <= targets.ndim <= 2
    titles = (
        [_target_title(target, class_names) for target in targets[:NUM_SAMPLES].cpu()]
        if has_titles
        else [""] * len(images)
    )
    return {"inputs": partial(draw_images, images, titles)}


def _target_title(target: Tensor, class_names: Sequence[str] | None) -> str:
    """Return the class or number, the two classes with the largest weights of a mixed target, or the labels."""
    if target.ndim == 0:
        number = target.item()
        return f"{number:.4g}" if isinstance(number, float) else _class_name(class_names, number)
    if not target.is_floating_point() or not math.isclose(float(target.sum()), 1, rel_tol=1e-3):
        labels = target.nonzero().flatten().tolist()
        names = [_class_name(class_names, label) for label in labels[:4]]
        return ", ".join(names) + (" ..." if len(labels) > 4 else "")
    weights, classes = target.topk(min(2, len(target)))
    pairs = zip(weights.tolist(), classes.tolist(), strict=True)
    return ", ".join(
        f"{_class_name(class_names, number)}: {percent(weight)}" for weight, number in pairs if weight > 0
    )


def _are_images(inputs: Any) -> bool:
    return isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] in (1, 3)
