"""Pictures of the inputs and mistakes of a classifier. They cost nothing if they are not configured."""

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
from hydrant.errors import ConfigError
from hydrant.training.distributed.world import World
from hydrant.training.plotting import draw_confusion, draw_images

Draw = Callable[[Path], None]
"""Writes a PNG."""

Observe = Callable[[Batch, Outcome], None]
"""Receives every batch of an evaluation."""

When = Literal["end", "evaluation"]

NUM_SAMPLES = 24


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

    def join(self, others: _Mistakes) -> _Mistakes:
        return _Mistakes(*(torch.cat(pair) for pair in zip(self, others, strict=True)))


class _Predictions:
    """The confusion matrix and the worst mistakes of one evaluation, kept on the device without a host sync."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self._num_classes = num_classes
        self._confusion = torch.zeros(num_classes**2, dtype=torch.int64, device=device)
        self._mistakes: _Mistakes | None = None

    def __call__(self, batch: Batch, outcome: Outcome) -> None:
        """Add the predictions of a batch."""
        logits, targets = outcome.predictions.float(), batch.targets
        probabilities, predicted = logits.softmax(dim=1).max(dim=1)
        self._confusion.scatter_add_(0, targets * self._num_classes + predicted, torch.ones_like(targets))
        losses = F.cross_entropy(logits, targets, reduction="none").nan_to_num(math.inf)
        losses = losses.masked_fill(predicted == targets, -math.inf)
        shown = batch.inputs if _are_images(batch.inputs) else targets
        mistakes = _Mistakes(losses, probabilities, targets, predicted, shown)
        self._mistakes = (mistakes if self._mistakes is None else self._mistakes.join(mistakes)).worst()

    def pictures(self, world: World, all_reduce: Callable[[Tensor], Tensor]) -> dict[str, Draw]:
        """Return the pictures of the predictions of all ranks, which call this together."""
        confusion = all_reduce(self._confusion).view(self._num_classes, self._num_classes).cpu()
        mistakes = None if self._mistakes is None else _Mistakes(*(values.cpu() for values in self._mistakes))
        per_rank = [part for part in world.all_gather(mistakes) if part is not None]
        pictures: dict[str, Draw] = {"confusion": partial(draw_confusion, confusion)}
        if per_rank:
            worst = _Mistakes(*map(torch.cat, zip(*per_rank, strict=True))).worst()
            worst = _Mistakes(*(values[worst.losses > -math.inf] for values in worst))
            if _are_images(worst.inputs) and len(worst.losses):
                columns = (worst.targets, worst.predicted, worst.probabilities)
                rows = zip(*(column.tolist() for column in columns), strict=True)
                titles = [f"{target}, predicted {predicted}\n({p:.0%} sure)" for target, predicted, p in rows]
                pictures["mistakes"] = partial(draw_images, worst.inputs, titles)
        return pictures


class EvaluationPictures:
    """Collects the predictions of evaluations and draws the configured pictures.

    Args:
        when: draw after every `evaluation`, after the last one (`end`), or never (None).
    """

    def __init__(self, when: When | None, num_classes: int, device: torch.device) -> None:
        self._when, self._num_classes, self._device = when, num_classes, device
        self._predictions: _Predictions | None = None

    @property
    def is_on(self) -> bool:
        return self._when is not None

    def observer(self) -> Observe | None:
        """Start an evaluation; return the function to call with each of its batches, or None if nothing is drawn."""
        self._predictions = _Predictions(self._num_classes, self._device) if self.is_on else None
        return self._predictions

    def pictures(
        self, world: World, all_reduce: Callable[[Tensor], Tensor], *, is_last: bool
    ) -> dict[str, Draw]:
        """Return the pictures of the latest evaluation; all ranks call this together.

        Args:
            world: the ranks, whose mistakes are gathered.
            all_reduce: sums a tensor over the ranks.
            is_last: the run ends after this evaluation.
        """
        if self._predictions is None or (self._when == "end" and not is_last):
            return {}
        return self._predictions.pictures(world, all_reduce)


def check_pictures(config: Mapping[str, Any], outcome: Outcome, num_classes: int | None) -> None:
    """Check that the configured pictures can be drawn.

    Raises:
        ConfigError: the task is not a classification, or the run has no evaluations.
    """
    if config["pictures"] is None:
        return
    if config["eval_every"] is None:
        message = "pictures are drawn after evaluations; set it, such as eval_every=1ep"
        raise ConfigError("eval_every", message)
    if outcome.predictions.shape[1:] != (num_classes,):
        classes = f"{num_classes} classes" if num_classes else "classes"
        message = f"need a classification, and this task returns no logits of {classes}; use pictures=null"
        raise ConfigError("pictures", message)


def input_pictures(batch: Batch) -> dict[str, Draw]:
    """Return a picture of the first samples of a batch as the model receives them; {} if they are not images."""
    if not (_are_images(batch.inputs) and isinstance(batch.targets, Tensor) and batch.targets.ndim <= 2):
        return {}
    targets = batch.targets[:NUM_SAMPLES].cpu()
    titles = [_target_title(target) for target in targets]
    return {"inputs": partial(draw_images, batch.inputs[:NUM_SAMPLES].cpu(), titles)}


def _target_title(target: Tensor) -> str:
    """Return the class number, or the two classes with the largest weights of a mixed target."""
    if target.ndim == 0:
        return str(int(target))
    weights, classes = target.topk(min(2, len(target)))
    pairs = zip(weights.tolist(), classes.tolist(), strict=True)
    return ", ".join(f"{number}: {weight:.0%}" for weight, number in pairs if weight > 0)


def _are_images(inputs: Any) -> bool:
    return isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] in (1, 3)
