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

_LOWER = {"loss", "error", "perplexity", "nll", "mse", "mae", "rmse", "mape", "wer", "cer", "fid", "kid", "distance",
          "divergence", "seconds", "memory"}  # fmt: skip
_SHARES = {"accuracy", "acc", "top1", "top5", "match", "agreement", "f1", "precision", "recall", "sensitivity",
           "specificity", "auc", "auroc", "ap", "map", "iou", "jaccard", "dice"}  # fmt: skip
_CORRELATIONS = {"kappa", "mcc", "correlation"}
_HIGHER = {*_SHARES, *_CORRELATIONS, "r2", "score", "bleu", "rouge", "psnr", "ssim"}
_LOGGED_WITH = {"train": ("log_every", "10"), **dict.fromkeys(("val", "val_ema"), ("eval_every", "1ep")),
                **dict.fromkeys(("test", "test_ema"), ("test_at_end", "true"))}  # fmt: skip
"""The key that decides whether a split has metrics, and a value with which it has."""
_ROUNDING = 1e-6
UNBOUNDED = (-math.inf, math.inf)
_PLATEAU = "hydrant.schedules.Plateau"


def resolve_best(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the key `best` of a checked config without `auto`: the metric of the task, and the metric's own mode.

    The mode remains `auto` if neither a class in `task.metrics` nor the metric's name says what is better.
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
    """Return whether a metric should be large or small, by its class in the node of a task or by its name."""
    return _mode_by_class(metric, task.get("metrics")) or mode_by_name(metric)


def unknown_mode(key: str, metric: str) -> ConfigError:
    """Return the error for a mode that remained `auto`."""
    message = f"nothing says whether a higher or a lower {metric} is better"
    return ConfigError(key, message, remedy="give max or min")


def declared_metric(task: Any) -> dict[str, str]:
    """Return `best_metric` of a task's class, or of the function that makes the task, if it has one.

    The config of a task that is passed from Python has it too.
    """
    metric = getattr(task, "best_metric", None)
    return {"best_metric": metric} if isinstance(metric, str) else {}


def mode_by_name(metric: str) -> Mode | None:
    """Return whether a metric should be large or small, by the words in its name; None if they do not say it.

    >>> mode_by_name("val/accuracy"), mode_by_name("val/top5_error"), mode_by_name("val/energy")
    ('max', 'min', None)
    """
    modes: list[Mode] = [mode for part in metric.split("/") if (mode := _mode_by_words(part)) is not None]
    return modes[0] if len(set(modes)) == 1 else None


def bounds_by_name(metric: str) -> tuple[float, float] | None:
    """Return the smallest and the largest value that a metric can have, by the words in its name; None: unknown.

    >>> bounds_by_name("val/accuracy"), bounds_by_name("MulticlassF1Score"), bounds_by_name("val/top5_error")
    ((0.0, 1.0), (0.0, 1.0), (0.0, 1.0))
    >>> bounds_by_name("val/mcc"), bounds_by_name("val/loss"), bounds_by_name("val/accuracy_loss")
    ((-1.0, 1.0), None, None)
    """
    words = {word.lower() for word in _words(metric)}
    if words & (_LOWER - {"error"}):
        return None
    return (0.0, 1.0) if words & _SHARES else (-1.0, 1.0) if words & _CORRELATIONS else None


def bounds_of(
    metric: str, configs: Iterable[Mapping[str, Any]], values: Iterable[float]
) -> tuple[float, float]:
    """Return the bounds of a metric by the words in its name or in that of its class in `task.metrics`.

    Args:
        configs: flat ones of its runs.
        values: of the metric. One that is outside, as of an accuracy in percent, has no bounds.
    """
    key = f"task.metrics.{metric.partition('/')[2]}._target_"
    names = [metric, *{str(config[key]).rpartition(".")[2] for config in configs if key in config}]
    low, high = next((bounds for name in names if (bounds := bounds_by_name(name)) is not None), UNBOUNDED)
    return (low, high) if all(low - _ROUNDING <= value <= high + _ROUNDING for value in values) else UNBOUNDED


def check_logged(metric: str, config: Mapping[str, Any]) -> None:
    """Raise ConfigError if no run of a checked config has a metric, because nothing of its split is computed."""
    key, example = _LOGGED_WITH.get(metric.partition("/")[0], ("", ""))
    if key and not config[key]:
        remedy = f"give {key}={example}"
        raise ConfigError(key, f"is {shown(config[key])}, so no run has {metric}", remedy=remedy)


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*", name)


def _mode_by_words(name: str) -> Mode | None:
    """Return the mode of one part of a name. A loss or an error of something else is a loss or an error."""
    known = [word.lower() for word in _words(name) if word.lower() in _LOWER | _HIGHER]
    if not known or _HIGHER.issuperset(known):
        return "max" if known else None
    return "min" if known[0] == "loss" or known[-1] in _LOWER else None


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
            classes.append(locate(path, "task.metrics"))
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
