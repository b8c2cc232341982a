"""What cannot be ejected yet: every option and every value of a key that is not listed here as possible."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.files.plain_values import leaves

_TORCH_OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD", "Adafactor",
    "LBFGS", "SparseAdam",
)  # fmt: skip
_OWN_OPTIMIZERS = tuple(
    f"hydrant.optimizers.{name}"
    for name in ("MuonWithAdamW", "NorMuonWithAdamW", "Sam", "timm_optimizer", "library_optimizer")
)
_CURVES = (
    "constant", "cosine", "cosine_restarts", "cyclic", "exponential", "inverse_sqrt", "linear", "multistep",
    "one_cycle", "polynomial", "rex", "step", "tanh", "wsd", "cyclic_momentum", "one_cycle_momentum", "product",
    "sequential", "lambda_", "Plateau",
)  # fmt: skip
_STEPPED = ("???", *(
    f"torch.optim.lr_scheduler.{name}"
    for name in (
        "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LinearLR",
        "MultiStepLR", "OneCycleLR", "PolynomialLR", "StepLR",
    )
))  # fmt: skip
"""The schedulers of torch. `???` is the target in the file of the option `stepped`: users give one of the others."""
_DATA_SETS = (
    "cifar10", "cifar100", "csv", "dataset", "digits", "image_folder", "memmap", "mnist", "mnist1d",
    "synthetic", "tensors", "tokens",
)  # fmt: skip
_MODELS = (
    "AirbenchNet", "ConvNet", "ConvNet1d", "DeepLinear", "GPT", "GRUClassifier", "MLP", "Track3GPT", "timm_model",
)  # fmt: skip
_TASKS = ("Classification", "LanguageModeling", "Regression")
_OBJECTS = ("augment", "metrics", "train", "val")
"""Arguments that are objects, and can be ejected."""

_LANGUAGE = ".LanguageModeling"
_MAY_BE_OWN = ("data", "model", "task")
"""Groups whose part may be the user's own, whose source is then copied."""

_AUGMENTATIONS = (None, "hydrant.data.ImageAugment", "hydrant.data.ShiftFlip", "hydrant.data.AlternatingFlip")
POSSIBLE: Mapping[str, tuple[str, ...]] = {
    "data": tuple(f"hydrant.data.{name}" for name in _DATA_SETS),
    "model": tuple(f"hydrant.models.{name}" for name in _MODELS),
    "task": tuple(f"hydrant.tasks.{name}" for name in _TASKS),
    "optimizer": (*(f"torch.optim.{name}" for name in _TORCH_OPTIMIZERS), *_OWN_OPTIMIZERS),
    "scheduler": (*(f"hydrant.schedules.{name}" for name in _CURVES), *_STEPPED),
    "precision": ("hydrant.training.Precision",),
    "averaging": tuple(f"hydrant.optimizers.{name}" for name in ("NoAveraging", "Ema", "TailAverage")),
    "mixing": ("hydrant.data.NoMixing", "hydrant.data.MixupCutmix"),
    "compile": ("hydrant.training.Eager", "hydrant.training.Compile"),
    "profiler": ("hydrant.training.NoProfiler",),
}
"""The targets of each config group that can be ejected."""

_CHOSEN = {
    "seed", "duration", "global_batch_size", "micro_batch_size", "eval_batch_size", "log_every", "eval_every",
    "save_every", "best", "max_grad_norm", "max_grad_value", "agc", "param_groups", "schedules", "mup", "patience",
    "deterministic", "cudnn_benchmark", "memory_format", "lr_scaling",
    "max_skipped", "skip_non_finite", "limit_train_samples", "limit_val_samples",
    "limit_test_samples", "test_at_end",
}  # fmt: skip
"""Keys with any value."""

_WITHOUT_EFFECT = {
    "histogram_every", "pictures",
    "name", "claim", "tags", "notes", "tracker", "trackers", "save_async", "keep_last", "keep_best", "keep_every",
    "resume", "resume_strict", "allow_targets", "parallel", "lr_base_size", "hooks",
}  # fmt: skip
"""Keys that change no number of a run on one process, or that the ejected file has no use for."""

_WATCHING = ("hydrant.hooks.Samples", "hydrant.hooks.TextSamples")
"""Hooks that change no number of a run."""

_ONLY: Mapping[str, Any] = {
    "task.class_dim": 1,
    "data.extra_val": {},
    "data.categories": "one_hot",
    "data.on_error": "fail",
    "data.decoder": "pillow",
    "compile.optimizer": False,
    "compile.evaluation": False,
    "precision.parameters": "float32",
    "precision.fp8": None,
}
"""Keys inside a group with the one value that can be ejected."""


def fixed_keys() -> list[str]:
    """Return the keys that must have their default: single ones, and those inside of groups."""
    known = POSSIBLE.keys() | _CHOSEN | _WITHOUT_EFFECT
    return [*(key for key in _usual_config() if key not in known), *_ONLY]


def check_possible(config: Mapping[str, Any]) -> None:
    """Check that a config can be ejected.

    Raises:
        ConfigError: names the first key that cannot.
    """
    for key, reason in refusals(config):
        raise ConfigError(key, f"{reason} cannot be ejected yet")


def refusals(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every key of a config that cannot be ejected, with what it has."""
    usual = _usual_config()
    for key, value in config.items():
        if key in POSSIBLE:
            is_own = key in _MAY_BE_OWN and not value["_target_"].startswith("hydrant.")
            if value["_target_"] not in POSSIBLE[key] and not is_own:
                yield key, value["_target_"]
        elif key not in _CHOSEN | _WITHOUT_EFFECT and value != usual.get(key):
            yield key, repr(value)
    for name, hook in (config["hooks"] or {}).items():
        if hook["_target_"] not in _WATCHING:
            yield f"hooks.{name}", hook["_target_"]
    for name, rule in config["param_groups"]["patterns"].items():
        if rule.get("schedules"):
            yield f"param_groups.patterns.{name}.schedules", "a schedule of one group"
    if any(str(leaf).endswith(".Plateau") for _, leaf in leaves(config["schedules"])):
        yield "schedules", "a schedule that depends on a metric"
    if isinstance(config["global_batch_size"], Mapping):
        yield "global_batch_size", "a size that changes"
    if config["micro_batch_size"] == "auto":
        yield "micro_batch_size", "auto"
    for key in ("duration", "log_every", "eval_every", "save_every", "scheduler"):
        if any(_is_time(leaf) for _, leaf in leaves(config[key])):
            yield key, "a duration in seconds"
    augment = config["data"].get("augment") or {}
    if augment.get("_target_") not in _AUGMENTATIONS:
        yield "data.augment", augment["_target_"]
    if config["task"].get("loss") not in (None, "mse", "mae", "huber"):
        yield "task.loss", repr(config["task"]["loss"])
    ignored, has_tokens = config["task"].get("ignore_index"), config["task"]["_target_"].endswith(_LANGUAGE)
    if (ignored is None) == has_tokens:
        yield "task.ignore_index", repr(ignored)
    if config["test_at_end"] and not config["keep_best"]:
        yield "keep_best", "0 with test_at_end"
    if config["skip_non_finite"] and config["precision"]["scale_loss"]:
        yield "skip_non_finite", "true with a loss scale, which skips gradients that overflow,"
    if config["parallel"].get("num_processes", 1) > 1:
        yield from _refusals_of_ranks(config)
    for path, needed in _ONLY.items():
        group, _, name = path.partition(".")
        if name in config[group] and config[group][name] != needed:
            yield path, repr(config[group][name])


def _refusals_of_ranks(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that cannot be ejected with several ranks."""
    node, optimizer = config["parallel"], str(config["optimizer"]["_target_"])
    if not node["_target_"].endswith(".Ddp"):
        yield "parallel", node["_target_"]
    else:
        yield from ((f"parallel.{key}", "true") for key in ("sync_batch_norm", "split_muon") if node[key])
    if config["precision"]["scale_loss"]:
        yield "precision", "a loss scale with several ranks"
    if config["test_at_end"]:
        yield "test_at_end", "true with several ranks"
    if config["skip_non_finite"]:
        yield "skip_non_finite", "true with several ranks"
    if not str(config["compile"]["_target_"]).endswith("Eager"):
        yield "compile", "a compiled model with several ranks"
    if optimizer.endswith(("LBFGS", "Sam")):
        yield "optimizer", f"{optimizer} with several ranks"


def _is_time(value: object) -> bool:
    """Return whether a value is a duration in seconds, minutes or hours, whose updates depend on the machine."""
    return isinstance(value, str) and re.fullmatch(r"[\d.eE+-]+\s*(s|min|h)", value) is not None


@functools.cache
def _usual_config() -> Mapping[str, Any]:
    """Return the config without overrides."""
    return check(compose([]))
