"""Classification into one of several classes, or by several labels: of samples, pixels or tokens.

Cross entropies of logits have class weights, label smoothing and targets that do not count. Predictions have the names
that `hydrant predict` writes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, widened
from hydrant.errors import ConfigError, log
from hydrant.files.plain_values import NotNegative, Ratio
from hydrant.tasks.base import Loss, MeanOfValid, Task, checked_loss, tensor_targets


def are_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Return for each target whether its class has the highest logit, (B, ...) bool. The mean is the accuracy.

    Args:
        logits: (B, C, ...) of C classes.
        targets: class indices, (B, ...) integers; or class probabilities or other logits, (B, C, ...) floats, whose
            largest value is the target class.

    >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    >>> are_correct(logits, torch.tensor([1, 1])), are_correct(logits, torch.tensor([[0.3, 0.7], [0.6, 0.4]]))
    (tensor([ True, False]), tensor([True, True]))
    """
    classes = targets.argmax(dim=1) if targets.is_floating_point() else targets
    return logits.argmax(dim=1) == classes


def class_predictions(logits: Tensor) -> dict[str, Tensor]:
    """Return the most probable class of each target and its probability, (B, ...); all probabilities, and the logits.

    Args:
        logits: (B, C, ...) of C classes.

    >>> import torch
    >>> predictions = class_predictions(torch.tensor([[0.0, 2.0], [1.0, 1.0]]))
    >>> predictions["prediction"], predictions["probability"]
    (tensor([1, 0]), tensor([0.8808, 0.5000]))
    """
    probabilities = logits.softmax(dim=1)
    probability, prediction = probabilities.max(dim=1)
    return {
        "prediction": prediction,
        "probability": probability,
        "probabilities": probabilities,
        "logits": logits,
    }


def label_predictions(logits: Tensor) -> dict[str, Tensor]:
    """Return the probability of each label, (B, C, ...), and the logits.

    Args:
        logits: (B, C, ...), one for each of C labels; a sample may have any number of them.
    """
    return {"probabilities": logits.sigmoid(), "logits": logits}


_NO_INDEX = -(2**31)  # a value that no target has


def cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, valid: Tensor | None
) -> Tensor:
    """Return the mean cross entropy, shape (). Terms are multiplied by class weights, which are not normalized.

    Args:
        logits: (B, C, ...).
        targets: class indices, (B, ...) int64, or class probabilities, (B, C, ...).
        weights: of the classes, (C,), or None.
        smoothing: label smoothing, 0..1.
        valid: which targets count, (B, ...) bool; None: all.

    >>> import torch
    >>> logits = torch.zeros(3, 2)
    >>> round(float(cross_entropy(logits, torch.tensor([0, 1, 1]), torch.tensor([4.0, 1.0]), 0.0, None)), 4)
    1.3863
    """
    is_index = not targets.is_floating_point()
    if valid is not None:
        targets = targets.where(valid, _NO_INDEX)
    if logits.ndim > 2 and (classes_last := logits.movedim(1, -1)).is_contiguous():  # faster in this order
        logits = classes_last.flatten(0, -2)
        targets = targets.flatten() if is_index else targets.movedim(1, -1).flatten(0, -2)
    if weights is None and valid is None:
        return F.cross_entropy(logits, targets, ignore_index=_NO_INDEX, label_smoothing=smoothing)
    terms = F.cross_entropy(
        logits, targets, weights, ignore_index=_NO_INDEX, reduction="none", label_smoothing=smoothing
    )
    return terms.mean() if valid is None else terms.sum() / valid.sum().clamp(min=1)


def binary_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, valid: Tensor | None
) -> Tensor:
    """Return the mean binary cross entropy, shape ().

    Args:
        logits: (B, C, ...).
        targets: whether a label is there, 0..1, float, in the shape of the logits.
        weights: of the targets that are 1, for each label, (C,), or None.
        smoothing: label smoothing, 0..1.
        valid: which targets count, bool; None: all.
    """
    smoothed = targets * (1 - smoothing) + smoothing / 2 if smoothing else targets
    per_label = None if weights is None else weights.view(-1, *[1] * (logits.ndim - 2))
    terms = F.binary_cross_entropy_with_logits(logits, smoothed, pos_weight=per_label, reduction="none")
    return terms.mean() if valid is None else terms.where(valid, 0).sum() / valid.sum().clamp(min=1)


class Classification(Task):
    """Cross entropy with label smoothing (Szegedy et al., 2016, section 7) and accuracy.

    A sample has one target, or one for each of its pixels or tokens. The loss is the mean over the targets that count.
    Class weights multiply the terms of this mean and are not normalized, so the loss does not depend on how an update
    is divided into micro-batches.

    Args:
        model: `inputs (B, ...) -> logits (B, C, ...)`, or `(B, ..., C)` with `class_dim=-1`.
        label_smoothing: part of the target probability that is spread evenly over all classes, 0..1. With `multi_label`
            it is spread over having the label or not.
        multi_label: binary cross entropy of each label. A sample may have several classes (labels) or none, and each
            label of a sample is a target.
        class_weights: a number of 0 or more for each class, or `balanced`: by the counts of the training targets; None:
            equal weights. With `multi_label` they multiply the terms of the targets that have the label, like torch's
            `pos_weight`. `balanced` is N / (K * N_c) for class c of K with N_c of the N training targets, as in
            scikit-learn (King & Zeng, "Logistic regression in rare events data", 2001).
        ignore_index: targets of this number do not count; None: all count.
        class_dim: the dimension of the logits with the classes: 1 in (B, C, H, W), -1 in (B, T, C).
        loss: replaces the cross entropy with its class weights and smoothing. It takes (logits (B, C, ...), targets),
            and returns the mean over the targets that count.
        metrics: torchmetrics by name, for evaluation. They get logits of shape (B, C, ...).
    """

    best_metric: ClassVar[str] = "val/accuracy"
    class_weights: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        label_smoothing: Ratio,
        multi_label: bool = False,
        class_weights: Sequence[NotNegative] | Literal["balanced"] | None = None,
        ignore_index: int | None = None,
        class_dim: Literal[1, -1] = 1,
        loss: Loss | None = None,
        metrics: Mapping[str, nn.Module],
    ) -> None:
        super().__init__(model, metrics)
        own_loss = None if loss is None else checked_loss(loss)
        if own_loss is not None and (label_smoothing or class_weights is not None):
            log.warning("task.loss replaces the cross entropy: label_smoothing and class_weights do nothing")
        self._is_balanced = class_weights == "balanced" and own_loss is None
        numbers = None if class_weights is None or isinstance(class_weights, str) else list(class_weights)
        weights = None if numbers is None else torch.tensor(numbers, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)
        self._label_smoothing, self._is_multi_label, self._own_loss = label_smoothing, multi_label, own_loss
        self.ignore_index, self._class_dim = ignore_index, class_dim
        self._ignored = own_loss.ignore_index if isinstance(own_loss, MeanOfValid) else ignore_index

    def receive_data(self, data: Any) -> None:
        """Take the class names, and the class of each training sample for balanced class weights.

        Raises:
            ConfigError: the labels are unknown, or a class has no sample.
        """
        super().receive_data(data)
        if not self._is_balanced:
            return
        labels: np.ndarray | None = getattr(data.train, "labels", None)
        counts = None if labels is None else np.bincount(labels[labels != self.ignore_index])
        if counts is None or not counts.all():
            unread = "balanced needs a class for each training sample that is known before it is read"
            message = unread if counts is None else f"class {counts.argmin()} has no training sample"
            raise ConfigError("task.class_weights", message, remedy="give a number for each class")
        self.class_weights = torch.tensor(counts.sum() / (len(counts) * counts), dtype=torch.float32)

    def assess(self, outputs: Tensor, batch: Batch) -> Outcome:
        """Return the loss of the model's logits.

        `batch.targets` are class indices, (B, ...) integers, or class probabilities in the shape of the logits. With
        `multi_label` they have the shape of the logits: 1 or 0, or the probability of each label.
        """
        targets = tensor_targets(batch.targets, "classification")
        logits, targets = self._classes_second(widened(outputs), targets)
        has_classes = targets.ndim == logits.ndim  # instead of their indices
        each_counts = self._is_multi_label or not has_classes
        valid = targets != self._ignored if each_counts and self._ignored is not None else None
        num_targets = targets.numel() if each_counts else targets.numel() // targets.shape[1]
        weights, smoothing = self.class_weights, self._label_smoothing
        weights = None if weights is None else weights.to(logits.dtype)
        if self._own_loss is not None:
            name, loss = "loss", self._own_loss(logits, targets)
        elif self._is_multi_label:
            name = "binary_cross_entropy"
            loss = binary_cross_entropy(logits, targets, weights, smoothing, valid)
        else:
            name, loss = "cross_entropy", cross_entropy(logits, targets, weights, smoothing, valid)
        measurements = self._measurements(logits, targets, valid) if self.measures else {}
        num_valid = num_targets if valid is None else valid.sum()
        return Outcome({name: loss}, measurements, logits.detach(), num_valid)

    def predict(self, inputs: Tensors) -> dict[str, Tensor]:
        """Return `prediction`, `probability`, `probabilities` and `logits`; with `multi_label`, the last two."""
        logits = widened(self.model(inputs))
        logits = logits.movedim(-1, 1) if self._class_dim == -1 else logits
        return label_predictions(logits) if self._is_multi_label else class_predictions(logits)

    def _measurements(self, logits: Tensor, targets: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        is_right = (logits > 0) == (targets > 0.5) if self._is_multi_label else are_correct(logits, targets)
        if valid is not None:
            return {"accuracy": (is_right & valid).sum() / valid.sum().clamp(min=1)}
        exact = {"exact_match": is_right.flatten(1).all(dim=1)} if self._is_multi_label else {}
        return {"accuracy": is_right, **exact}

    def _classes_second(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and, if they have classes, the targets with the classes in dimension 1.

        Raises:
            ConfigError: the shapes do not fit.
        """
        shape, of_targets = logits.shape[1:], targets.shape[1:]
        if logits.ndim < 2 or (logits.shape[self._class_dim] < 2 and not self._is_multi_label):
            message = f"gives logits of shape {list(shape)} for a sample, but classes need two or more"
            outputs = "2 outputs or more by model.num_classes or its key"
            remedy = f"give {outputs}, or task.multi_label=true or task=regression"
            raise ConfigError("model", message, remedy=remedy)
        has_classes = self._is_multi_label or targets.is_floating_point()
        without_classes = shape[1:] if self._class_dim == 1 else shape[:-1]
        if of_targets != (shape if has_classes else without_classes):
            shapes = f"shape {list(of_targets)} for logits of shape {list(shape)}"
            message = f"a sample has {targets.dtype} targets of {shapes} (task.class_dim={self._class_dim})"
            indices = f"class indices are integers of shape {list(without_classes)}"
            remedy = f"{indices}; probabilities, and labels of task.multi_label=true, have that of the logits"
            raise ConfigError("task", message, remedy=remedy)
        targets = targets.to(logits.dtype) if has_classes else targets.long()
        if self._class_dim == 1:
            return logits, targets
        return logits.movedim(-1, 1), targets.movedim(-1, 1) if has_classes else targets
