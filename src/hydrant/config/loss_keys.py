"""Which config keys define a metric. In two configs that differ in one of them, it is another quantity."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

_LOSSES = ("loss", "cross_entropy", "distillation", "z_loss", "generator", "discriminator", "loss0", "loss1")
"""The names of the losses of Hydrant's tasks, and of their parts."""
LOSS_OF_BATCH = "loss_of_batch"
"""In the summary of a run whose loss is one of a whole batch: the samples in each loss of an evaluation."""
_OF_EACH = ("task", "task._target_", "task.label_smoothing", "task.class_weights", "task.ignore_index",
            "task.multi_label", LOSS_OF_BATCH)  # fmt: skip
_OF_THE_SUM = ("task.loss", "task.delta", "task.z_loss", "task.share", "task.temperature", "task.layers")
"""Not of a part such as `cross_entropy`, which is logged without its weight and without the others."""
_OF_PARTS = {"distillation": ("task.loss", "task.temperature", "task.layers"), "z_loss": ("task.z_loss",)}
_USED_BY = {"task.delta": "huber", "task.temperature": "kl", "task.layers": "features"}
"""Keys that only one `task.loss` uses. A task of the user that has no such key may use them anyway."""
_OF_THE_TARGETS = ("task.ignore_index", "task.multi_label")
"""Which targets count, also in the accuracy."""
_OF_THE_UNIT, _WITHOUT_UNIT = "data.standardize_targets", ("r2", "accuracy", "exact_match", "cross_entropy")
"""The key that changes the unit of the targets, and the metrics that have none."""
_METRICS = "task.metrics."
_OPTIONAL = ("task.loss", "mixing")
"""Prefixes of keys whose absence is another value. Other keys are absent in runs of earlier versions."""


def defines(key: str, metric: str) -> bool:
    """Return whether a key defines a metric.

    >>> defines("task.loss.reduction", "val/loss"), defines("task.loss", "val/mse"), defines("mixing", "val/loss")
    (True, False, False)
    >>> [defines("task.share", f"val/{name}") for name in ("loss", "cross_entropy", "distillation")]
    [True, False, False]
    >>> defines("task.temperature", "val/distillation"), defines("task.temperature", "val/cross_entropy")
    (True, False)
    >>> defines("data.standardize_targets", "val/mae"), defines("data.standardize_targets", "val/r2")
    (True, False)
    >>> defines("task.metrics.top.top_k", "val/night/top"), defines("task.metrics.top.top_k", "val/f1")
    (True, False)
    """
    name = metric.rpartition("/")[2]
    if key.startswith(_METRICS):
        return key.removeprefix(_METRICS).partition(".")[0] in metric.split("/")
    if key == _OF_THE_UNIT:
        return name not in _WITHOUT_UNIT
    if name not in _LOSSES:
        return key in _OF_THE_TARGETS and name == "accuracy"
    is_mixing = metric.startswith("train/") and (key == "mixing" or key.startswith("mixing."))
    is_of_each = key in _OF_EACH or key.startswith("task.loss.")  # an object, which may compute each part
    is_of_teacher = key.startswith("task.teacher.")
    is_of_sum = name == "loss" and (key in _OF_THE_SUM or is_of_teacher)
    is_of_part = key in _OF_PARTS.get(name, ()) or (is_of_teacher and name == "distillation")
    return is_of_each or is_mixing or is_of_sum or is_of_part


def differing_definitions(metric: str, configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that define a metric and in which flat configs differ: `task` alone if its options differ."""
    found = list[str]()
    for key in sorted({key for config in configs for key in config if defines(key, metric)}):
        is_optional = key.startswith(_OPTIONAL)
        values = {_value(config, key) for config in configs if is_optional or key in config}
        if len(values) > 1:
            found.append(key)
    return ["task"] if "task" in found else found


def _value(config: Mapping[str, Any], key: str) -> str:
    """Return a text that is equal for equal values; "" if the loss does not use the key."""
    if key in _USED_BY and config.get("task.loss", _USED_BY[key]) != _USED_BY[key]:
        return ""
    return json.dumps(_number(config.get(key)), default=str)


def _number(value: Any) -> Any:
    """Return a value whose numbers are floats: YAML reads `1e-1` as a text, and W&B turns 1.0 into 1."""
    if isinstance(value, list):
        return [_number(item) for item in cast("list[Any]", value)]
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return float(value)
    return value
