"""The schema of a run's config. Groups are open: their keys are checked against their target's signature."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from hydrant.errors import ConfigError


@dataclass(frozen=True)
class Best:
    """Which metric of an evaluation decides the best checkpoint."""

    metric: str
    mode: Literal["max", "min"]


@dataclass(frozen=True)
class ParamGroups:
    """How the parameters are divided among groups of the optimizer."""

    no_decay: bool
    layer_decay: float | None
    layer_decay_min_scale: float
    patterns: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class OptimizerSettings:
    """What every optimizer has: the only one at the top level, named ones each under `optimizers`."""

    optimizer: Any
    scheduler: Any
    schedules: dict[str, Any]
    param_groups: ParamGroups
    lr_scaling: Literal["linear", "sqrt"] | None
    lr_base_size: int
    max_grad_norm: float | None
    max_grad_value: float | None
    agc: float | None


@dataclass(frozen=True)
class TrainConfig(OptimizerSettings):
    """Every key of `conf/train.yaml`, where each is explained; the defaults live there alone.

    Only read, by `check`: OmegaConf would turn a 2 into `true` and a 7 into `'7'` where it is told the types.
    Durations (`Any`) are written 500 (updates), 10ep, 64000sa or, within the run, 5%.
    """

    name: str | None
    claim: str | None
    seed: int
    duration: Any
    global_batch_size: int
    micro_batch_size: int | Literal["auto"] | None
    eval_batch_size: int
    log_every: Any
    eval_every: Any
    save_every: Any
    histogram_every: Any
    pictures: Literal["end", "evaluation"] | None
    save_async: bool
    keep_last: int
    keep_best: int
    keep_every: Any
    best: Best
    patience: int | None
    optimizers: dict[str, Any]
    skip_non_finite: bool
    max_skipped: int
    limit_train_samples: int | None
    limit_val_samples: int | None
    deterministic: bool
    resume: Literal["auto"] | str | None
    resume_strict: bool
    init_from: str | None
    init_strict: bool
    allow_targets: list[str]
    data: Any
    model: Any
    task: Any
    precision: Any
    averaging: Any
    mixing: Any
    compile: Any
    parallel: Any
    profiler: Any
    tracker: Any


@dataclass(frozen=True)
class NamedOptimizer(OptimizerSettings):
    """One of `optimizers`: what it trains, by which losses, and whatever else is not as at the top level."""

    parts: list[str] | None
    losses: list[str] | None


NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def check_name(name: str) -> None:
    """Raises ConfigError for a name that a run's folder cannot have."""
    if not NAME.fullmatch(name):
        raise ConfigError("name", f"{name!r} is no folder name; use letters, digits, '.', '_' and '-'")


DURATIONS = ("duration", "log_every", "eval_every", "save_every", "keep_every", "histogram_every")
GROUPS = ("data", "model", "task", "optimizer", "scheduler", "precision", "averaging", "mixing", "compile", "parallel",
          "profiler", "tracker")  # fmt: skip
WAITING = (
    "task",
    "optimizer",
    "scheduler",
    "precision",
    "averaging",
    "mixing",
    "compile",
    "profiler",
    "tracker",
)  # for what the run gives them
POSITIVE = ("patience", "global_batch_size", "micro_batch_size", "eval_batch_size", "keep_last", "keep_best",
            "limit_train_samples", "limit_val_samples")  # fmt: skip
OPTIMIZER_POSITIVE = ("lr_base_size", "max_grad_norm", "max_grad_value", "agc")
NOT_NEGATIVE = ("max_skipped",)
