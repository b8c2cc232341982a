"""Losses that users give to a task. They must be means over the targets, however micro-batches divide these."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.errors import ConfigError

Loss = Callable[[Any, Any], Any]
"""`(outputs, targets)` -> the mean over the samples, shape (), or several such means by name, which are added."""

_MEANS = ("mean", "batchmean")
_MODULES: dict[Any, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy: nn.BCELoss,
}


class MeanOfValid(nn.Module):
    """A loss of torch with an `ignore_index`: the mean over the targets that count, and 0 if there are none."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self._terms: Any = copy.copy(loss)
        self._terms.reduction = "none"  # of the copy
        self.ignore_index: int = self._terms.ignore_index

    def valid(self, targets: Tensor) -> Tensor | None:
        """Return which targets count, bool; None if the targets are probabilities, which all count."""
        return None if targets.is_floating_point() else targets != self.ignore_index

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        terms, valid = self._terms(outputs, targets), self.valid(targets)
        return terms.mean() if valid is None else terms.sum() / valid.sum().clamp(min=1)


def checked_loss(loss: object) -> Loss:
    """Return a loss whose value for several batches is the mean of its values, weighted by their numbers of targets.

    Raises:
        ConfigError: it is no function (only a name, for example), or one of its arguments makes it another mean.
    """
    if not callable(loss):
        path = loss if isinstance(loss, str) and "." in loss else "torch.nn.CrossEntropyLoss"
        example = f"write '+task.loss={{_target_: {path}}}'"
        raise ConfigError("task.loss", f"{loss!r} is no function of outputs and targets; {example}")
    given: Any = _as_module(loss)
    if not is_of_torch(given):
        return given  # the user's own function, which must be a mean
    arguments = given.keywords if isinstance(given, partial) else vars(given)
    reduction = arguments.get("reduction", "mean")
    if reduction not in _MEANS:
        message = f"{reduction} is no mean over the targets, so the result would depend on micro_batch_size; give mean"
        raise ConfigError("task.loss.reduction", message)
    if getattr(given, "ignore_index", None) is None:
        return given
    if getattr(given, "weight", None) is not None:
        message = (
            "torch divides by the sum of the weights of a micro-batch, so the result would depend on its size"
        )
        remedy = "write task=classification task.class_weights=[...] instead, which divides by the number of targets"
        raise ConfigError("task.loss.weight", message, remedy=remedy)
    return MeanOfValid(given)  # pyright: ignore[reportArgumentType] # a module, as it has ignore_index


def is_of_torch(loss: object) -> bool:
    """Return whether torch computes a loss, perhaps for Hydrant. Most of those broadcast the shapes that they get."""
    made_by = loss.func if isinstance(loss, partial) else getattr(type(loss), "forward", loss)
    return str(getattr(made_by, "__module__", "")).startswith(("torch.nn.", __name__))


def _as_module(loss: Callable[..., Any]) -> Loss:
    """Return torch's module instead of its function (also with arguments), and any other loss as it is."""
    function, arguments = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    is_known = function in _MODULES and not getattr(loss, "args", ())
    return _MODULES[function](**arguments) if is_known else loss


def check_weight(loss: object, targets: object) -> None:
    """Refuse a loss with a weight per sample, because it fits only micro-batches of one size.

    Raises:
        ConfigError: the loss has one.
    """
    if not isinstance(loss, nn.BCELoss | nn.BCEWithLogitsLoss) or not isinstance(targets, Tensor):
        return
    for name in ("weight", "pos_weight"):
        weight: Tensor | None = getattr(loss, name, None)
        if weight is not None and 0 < targets.ndim <= weight.ndim and len(weight) != 1:
            message = f"has {len(weight)} numbers, one for each sample of a batch, which depends on micro_batch_size"
            remedy = "give one for each label, or return the weights with the targets and write a loss that uses them"
            raise ConfigError(f"task.loss.{name}", message, remedy=remedy)


@torch.no_grad()
def check_ignored(loss: Loss, logits: Tensor, targets: Tensor, ignored: int) -> None:
    """Check that a loss leaves ignored targets out: other logits of a sample whose targets are ignored change nothing.

    They may change the terms of others, as negatives of a contrastive loss do: without others, nothing may change.

    Raises:
        ConfigError: they change the loss.
    """
    if len(targets) < 2 or isinstance(loss, MeanOfValid):
        return
    one, every, other = targets.clone(), torch.full_like(targets, ignored), logits.clone()
    one[0] = ignored
    other[0] += torch.arange(other[0].numel(), device=other.device).view_as(other[0])

    def depends(targets: Tensor) -> bool:
        value, again, changed = (loss(given, targets) for given in (logits, logits, other))
        counts = bool(value.isinf())  # their terms, by the number of the others, which is 0
        return counts or (torch.equal(value, again) and not torch.isclose(value, changed))

    if depends(one) and depends(every):
        message = f"counts targets of {ignored} too, which task.ignore_index leaves out; give the mean over the others"
        raise ConfigError("task.loss", message)
