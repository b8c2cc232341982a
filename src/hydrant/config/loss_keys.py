"""Which config keys define a loss. The losses of two configs that differ in one of them are different quantities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_LOSSES = ("loss", "cross_entropy")
_DEFINING = ("task", "task._target_", "task.loss", "task.label_smoothing", "task.class_weights", "task.ignore_index",
             "task.multi_label", "task.delta", "task.z_loss", "task.share", "task.temperature", "task.layers",
             "data.standardize_targets")  # fmt: skip
_OPTIONAL = (
    "task.loss",
    "mixing",
)  # a part that is absent is another value; other keys were added to Hydrant later


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
    """
    if not is_loss(metric):
        return False
    is_mixing = metric.startswith("train/") and (key == "mixing" or key.startswith("mixing."))
    return key in _DEFINING or key.startswith(("task.loss.", "task.teacher.")) or is_mixing


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
