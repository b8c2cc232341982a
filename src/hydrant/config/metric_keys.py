"""The metric of the best checkpoint, values that a metric should reach, and the config keys that define a metric."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

from hydrant.config import DEFAULT_METRIC
from hydrant.config.groups import PASSED_PREFIX
from hydrant.errors import ConfigError, shown
from hydrant.safety.targets import locate, target_nodes

Mode = Literal["max", "min"]

_LOWER = {"loss", "cross_entropy", "binary_cross_entropy", "distillation", "z_loss", "mse", "mae", "perplexity",
          "bits_per_byte", "kernel_distance"}  # fmt: skip
_SHARES = {"accuracy", "exact_match", "agreement"}
_HIGHER = {*_SHARES, "r2", "mfu", "updates_per_second", "samples_per_second", "tokens_per_second"}
_SHARE_CLASS = re.compile("(Binary|Multiclass|Multilabel)?(Accuracy|ExactMatch|FBetaScore|F1Score|Precision|Recall|"
                          "Specificity|AUROC|AveragePrecision|JaccardIndex)")  # fmt: skip
"""Classes of torchmetrics whose values are from 0 to 1."""
_LOGGED_WITH = {"train": ("log_every", "10"), **dict.fromkeys(("val", "val_ema"), ("eval_every", "1ep")),
                **dict.fromkeys(("test", "test_ema"), ("test_at_end", "true"))}  # fmt: skip
"""The key that decides whether a split has metrics, and a value with which it has."""
UNBOUNDED = (-math.inf, math.inf)
_PLATEAU = "hydrant.schedules.Plateau"


def resolve_best(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the key `best` of a checked config without `auto`: the metric of the task, and the metric's own mode.

    The mode remains `auto` if neither a class in `task.metrics` nor `mode_by_name` says what is better.
    """
    metric, mode, task = config["best"]["metric"], config["best"]["mode"], config["task"]
    if metric == "auto":
        is_passed = task["_target_"].startswith(PASSED_PREFIX)
        declared = task if is_passed else declared_metric(locate(task["_target_"], "task._target_"))
        metric = declared.get("best_metric", DEFAULT_METRIC)
    return {"metric": metric, "mode": mode_of(metric, task) or "auto" if mode == "auto" else mode}


def is_averaged(metric: str) -> bool:
    """Return whether a metric is of the averaged weights.

    >>> is_averaged("val_ema/night/accuracy"), is_averaged("val/accuracy")
    (True, False)
    """
    return metric.partition("/")[0] == "val_ema"


def resolve_plateaus(config: Mapping[str, Any]) -> None:
    """Replace the mode `auto` in the nodes of `scheduler=plateau` by that of their metric, if something says it."""
    for _, node in target_nodes(config, ""):
        metric = node.get("metric")
        if node["_target_"] == _PLATEAU and node.get("mode") == "auto" and isinstance(metric, str):
            cast("dict[str, Any]", node)["mode"] = mode_of(metric, config["task"]) or "auto"


def mode_of(metric: str, task: Mapping[str, Any]) -> Mode | None:
    """Return whether a metric should be large or small, by its class in the node of a task, or as `mode_by_name`."""
    return _mode_by_class(metric, task.get("metrics")) or mode_by_name(metric)


def unknown_mode(key: str, metric: str, remedy: str = "give max or min") -> ConfigError:
    """Return the error for a mode that remained `auto`."""
    message = f"nothing says whether a higher or a lower {metric} is better"
    return ConfigError(key, message, remedy=remedy)


def declared_metric(task: Any) -> dict[str, str]:
    """Return `best_metric` of a task's class, or of the function that makes the task, if it has one.

    The config of a task that is passed from Python has it too.
    """
    metric = getattr(task, "best_metric", None)
    return {"best_metric": metric} if isinstance(metric, str) else {}


def mode_by_name(metric: str) -> Mode | None:
    """Return whether a metric of Hydrant's own should be large or small; None for another name.

    >>> mode_by_name("val/night/accuracy"), mode_by_name("train/mse"), mode_by_name("val/accuracy_drop")
    ('max', 'min', None)
    """
    name = metric.rpartition("/")[2]
    return "min" if name in _LOWER else "max" if name in _HIGHER else None


def bounds_of(
    metric: str, configs: Iterable[Mapping[str, Any]], values: Iterable[float]
) -> tuple[float, float]:
    """Return the bounds of a metric: 0 and 1 for those of Hydrant's tasks and of `task.metrics` that are shares.

    Args:
        configs: flat ones of its runs.
        values: of the metric. One that is outside, as of an accuracy in percent, has no bounds.
    """
    name, key = metric.rpartition("/")[2], f"task.metrics.{metric.partition('/')[2]}._target_"
    classes = [name, *(str(config.get(key)).rpartition(".")[2] for config in configs)]
    is_share = name in _SHARES or any(map(_SHARE_CLASS.fullmatch, classes))
    return (0.0, 1.0) if is_share and all(-1e-6 <= value <= 1 + 1e-6 for value in values) else UNBOUNDED


def check_logged(metric: str, config: Mapping[str, Any]) -> None:
    """Raise ConfigError if no run of a checked config has a metric, because nothing of its split is computed."""
    key, example = _LOGGED_WITH.get(metric.partition("/")[0], ("", ""))
    if key and not config[key]:
        remedy = f"give {key}={example}"
        raise ConfigError(key, f"is {shown(config[key])}, so no run has {metric}", remedy=remedy)


def _mode_by_class(metric: str, metrics: object) -> Mode | None:
    """Return the mode by `higher_is_better` of the class in `task.metrics` that computes a metric."""
    names = metric.split("/")[1:]
    nodes = cast("Mapping[str, Any]", metrics) if isinstance(metrics, Mapping) else {}
    node = next((nodes[name] for name in names if name in nodes), None)
    declared = (getattr(target, "higher_is_better", None) for target in _targets(node, names))
    flags = {flag for flag in declared if isinstance(flag, bool)}
    if len(flags) != 1:
        return None
    return "max" if flags.pop() else "min"


def _targets(node: object, names: Sequence[str]) -> list[Any]:
    """Return the classes in the node of a metric; of a collection, those that the metric's name names."""
    nodes = list(target_nodes(node, ""))
    is_collection = bool(nodes) and nodes[0][1]["_target_"].endswith(".MetricCollection")
    classes: list[Any] = []
    for key, inner in nodes:
        path = inner["_target_"]
        if not is_collection or names[-1] in (key.rpartition(".")[2], path.rpartition(".")[2]):
            target = locate(path, "task.metrics")
            if path.startswith("torchmetrics."):
                with suppress(ConfigError):  # `F1Score` declares nothing, and makes a `MulticlassF1Score`
                    target = locate(f"torchmetrics.classification.Multiclass{target.__name__}", "")
            classes.append(target)
    return classes


@dataclass(frozen=True)
class Target:
    """A value that a metric should reach."""

    metric: str
    value: float
    mode: str  # "max": at least the value; "min": at most

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.mode == 'max' else '<='}{self.value:g}"

    def is_reached(self, row: Mapping[str, float]) -> bool:
        """Return whether the metrics of a row reach the value."""
        value = row.get(self.metric, math.nan)
        return value >= self.value if self.mode == "max" else value <= self.value


def parse_target(text: str, key: str) -> Target:
    """Parse a target such as `val/accuracy>=0.95`; `key` names it in the error.

    Raises:
        ConfigError: the text is not a target.
    """
    match = re.fullmatch(r"(.+?)(>=|<=)\s*([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)\s*", text, re.IGNORECASE)
    if match is None:
        remedy = "write one in quotes: 'val/accuracy>=0.95' or 'val/loss<=0.1'"
        raise ConfigError(key, f"{text!r} is not a target", remedy=remedy)
    return Target(match[1].strip(), float(match[3]), "max" if match[2] == ">=" else "min")


_LOSSES = ("loss", "cross_entropy", "distillation", "z_loss", "generator", "discriminator", "loss0", "loss1")
"""The names of the losses of Hydrant's tasks, and of their parts."""
LOSS_OF_BATCH = "loss_of_batch"
"""In the summary of a run whose loss is one of a whole batch: the samples in each loss of an evaluation."""
_OF_EACH = ("task", "task._target_", "task.label_smoothing", "task.class_weights", "task.ignore_index",
            "task.multi_label", LOSS_OF_BATCH)  # fmt: skip
_OF_THE_SUM = ("task.loss", "task.delta", "task.z_loss", "task.share", "task.temperature")
"""Not of a part such as `cross_entropy`, which is logged without its weight and without the others."""
_OF_PARTS = {"distillation": ("task.loss", "task.temperature"), "z_loss": ("task.z_loss",)}
_USED_BY = {"task.delta": "huber", "task.temperature": "kl"}
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
    differing = list[str]()
    for key in sorted({key for config in configs for key in config if defines(key, metric)}):
        is_optional = key.startswith(_OPTIONAL)
        if len({_value(config, key) for config in configs if is_optional or key in config}) > 1:
            differing.append(key)
    return ["task"] if "task" in differing else differing


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
