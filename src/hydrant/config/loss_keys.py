"""Which config keys define a loss. The losses of two configs that differ in one of them are different quantities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_LOSSES = ("loss", "cross_entropy")
_OF_EACH = ("task", "task._target_", "task.label_smoothing", "task.class_weights", "task.ignore_index",
            "task.multi_label")  # fmt: skip
_OF_THE_SUM = ("task.loss", "task.delta", "task.z_loss", "task.share", "task.temperature", "task.layers",
               "data.standardize_targets")  # fmt: skip
"""Not of `cross_entropy`, a part that is logged without its weight and without the others."""
_OPTIONAL = ("task.loss", "mixing")
"""Prefixes of keys whose absence is another value. Other keys are absent in runs of earlier versions."""


def is_loss(metric: str) -> bool:
    """Return whether a metric is a loss, whose value depends on the keys of the task.

    >>> is_loss("val/loss"), is_loss("val_ema/night/cross_entropy"), is_loss("val/mse")
    (True, True, False)
    """
    return metric.rpartition("/")[2] in _LOSSES


def defines(key: str, metric: str) -> bool:
    """Return whether a key defines a metric.

    >>> defines("task.loss.reduction", "val/loss"), defines("task.loss", "val/mse"), defines("mixing", "val/loss")
    (True, False, False)
    >>> defines("task.share", "val/loss"), defines("task.share", "val/cross_entropy")
    (True, False)
    """
    if not is_loss(metric):
        return False
    is_mixing = metric.startswith("train/") and (key == "mixing" or key.startswith("mixing."))
    is_of_each = key in _OF_EACH or key.startswith("task.loss.")  # an object, which may compute each part
    is_of_sum = key in _OF_THE_SUM or key.startswith("task.teacher.")
    return is_of_each or is_mixing or (is_of_sum and metric.rpartition("/")[2] == "loss")


def differing_definitions(metric: str, configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that define a metric and in which flat configs differ: `task` alone if its options differ."""
    found = list[str]()
    for key in sorted({key for config in configs for key in config if defines(key, metric)}):
        is_optional = key.startswith(_OPTIONAL)
        values = {
            json.dumps(config.get(key), default=str) for config in configs if is_optional or key in config
        }
        if len(values) > 1:
            found.append(key)
    return ["task"] if "task" in found else found
