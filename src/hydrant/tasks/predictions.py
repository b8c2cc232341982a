"""The predictions of classifications, by the names that `hydrant predict` writes."""

from __future__ import annotations

from torch import Tensor


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
