"""The names of metrics, and the values of those that evaluations update with predictions."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.config.user_errors import place
from hydrant.errors import ConfigError, shown, typed_line

OWN_GROUPS = ("train", "val", "val_ema", "test", "test_ema", "optim", "perf", "compile")
"""The groups of metrics that a run writes itself."""


def is_own(name: str) -> bool:
    """Return whether a metric is in a group that the run writes itself, such as `val/accuracy`."""
    group, slash, _ = name.partition("/")
    return bool(slash) and group in OWN_GROUPS


def plain_name(name: str) -> str:
    """Return the name of a metric as every file and tracker can hold it. A class may have any name on the disk.

    >>> plain_name("f1/größer"), plain_name("f1/gr\\udcf6sser")
    ('f1/größer', 'f1/gr\\\\udcf6sser')
    """
    return name if name.isascii() and "\0" not in name else _escaped(name)


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def named_values(key: str, value: Any, class_names: Sequence[str] | None = None) -> dict[str, float]:
    """Return what a metric has computed as numbers by name. The values of a dict or a vector follow after a slash.

    Args:
        key: the name of the metric.
        value: a number, a tensor, or a nested dict of them.
        class_names: of the data; they name the entries of a vector that has one for each class.

    Raises:
        ConfigError: the value is none of these, such as a matrix.

    >>> named_values("f1", torch.tensor(0.5)), named_values("f1", {"cat": 0.5, "dog": 1})
    ({'f1': 0.5}, {'f1/cat': 0.5, 'f1/dog': 1.0})
    >>> named_values("f1", torch.tensor([0.5, 0.25])), named_values("f1", torch.tensor([0.5, 0.25]), ["cat", "dog"])
    ({'f1/0': 0.5, 'f1/1': 0.25}, {'f1/cat': 0.5, 'f1/dog': 0.25})
    """
    if isinstance(value, Mapping):
        values = cast("Mapping[Any, Any]", value)
        parts = (named_values(f"{key}/{name}", part, class_names) for name, part in values.items())
        return {name: number for part in parts for name, number in part.items()}
    if isinstance(value, Tensor) and value.ndim == 1 and not value.is_complex():
        has_names = class_names is not None and len(class_names) == len(value)
        names = class_names if has_names else range(len(value))
        return {
            f"{key}/{name}": number for name, number in zip(names or (), value.double().tolist(), strict=True)
        }
    if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
        return {key: float(value)}
    found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else shown(value)
    message = f"computes {found}; an evaluation logs a number, a vector, or a dict of them"
    raise ConfigError(f"task.metrics.{key.partition('/')[0]}", message)


def try_metrics(task: Any, batch: Batch, outcome: Outcome) -> list[str]:
    """Update a copy of each metric of a task with a batch, on the host; return the names of the values.

    A metric that computes nothing for so few samples is taken to have one value.

    Raises:
        ConfigError: a metric does not fit the predictions and targets, or computes no numbers.
    """
    names: list[str] = []
    for name, metric in cast("nn.ModuleDict", task.metrics).items():
        trial: Any = _unsynchronized(metric)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # few samples need not hold every class
            try:
                trial.update(outcome.predictions, batch.targets)
            except Exception as error:  # a metric may raise anything
                message = f"does not fit the predictions and targets: {typed_line(error)} (at {place(error)})"
                raise ConfigError(f"task.metrics.{name}", message) from error
            try:
                value = trial.compute()
            except Exception:  # such as too few samples for its formula
                value = 0.0
        names += named_values(name, value, task.class_names)
    return names


def _unsynchronized(metric: nn.Module) -> nn.Module:
    """Return a copy of a metric that computes its value from the samples of this rank alone."""
    trial = copy.deepcopy(metric)
    for module in trial.modules():
        if hasattr(module, "sync_on_compute"):  # a torchmetrics.Metric
            module.sync_on_compute = module._to_sync = False  # type: ignore[assignment]
    return trial
