"""The schema of a run's config. The keys of a group are not listed: its target's signature decides them."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegativeInt, Positive, PositiveInt, Ratio

DEFAULT_METRIC = "val/loss"
"""The metric of the best checkpoint of a task that declares no `best_metric`."""


@dataclass(frozen=True)
class Best:
    """The evaluation metric that decides which checkpoint is the best."""

    metric: str
    mode: Literal["auto", "max", "min"]


@dataclass(frozen=True)
class ParamGroups:
    """The division of the parameters into the optimizer's param groups."""

    no_decay: bool
    layer_decay: float | None
    layer_decay_min_scale: float
    patterns: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class OptimizerSettings:
    """The settings of an optimizer: top-level for a single one, else under `optimizers.<name>`."""

    optimizer: Any
    scheduler: Any
    schedules: dict[str, Any]
    param_groups: ParamGroups
    lr_scaling: Literal["linear", "sqrt"] | None
    lr_base_size: PositiveInt
    mup: Literal["adam", "sgd", "muon", "spectral"] | None
    max_grad_norm: Positive | None
    max_grad_value: Positive | None
    agc: Positive | None


@dataclass(frozen=True)
class TrainConfig(OptimizerSettings):
    """The keys of `conf/train.yaml` except `defaults` and `hydra`. That file explains each key and holds all defaults.

    Not a structured config: OmegaConf would turn 2 into `true` and 7 into `'7'`. `check` reads the type hints.
    Durations have the type `Any`: 500 (updates), 10ep, 64000sa, 10Mtok, 1e15flop, 5min or 5% (of the run).
    """

    name: str | None
    claim: str | None
    tags: list[str]
    notes: str | None
    seed: NotNegativeInt
    duration: Any
    global_batch_size: PositiveInt | Literal["all"] | dict[str, PositiveInt]
    micro_batch_size: PositiveInt | Literal["auto"] | None
    eval_batch_size: PositiveInt
    log_every: Any
    eval_every: Any
    save_every: Any
    histogram_every: Any
    pictures: Literal["end", "evaluation"] | None
    save_async: bool
    keep_last: PositiveInt
    keep_best: PositiveInt
    keep_every: Any
    best: Best
    patience: PositiveInt | None
    test_at_end: bool
    optimizers: dict[str, Any]
    skip_non_finite: bool
    max_skipped: NotNegativeInt
    limit_train_samples: PositiveInt | None
    limit_val_samples: PositiveInt | None
    limit_test_samples: PositiveInt | None
    label_noise: Ratio
    label_noise_seed: NotNegativeInt
    folds: Annotated[int, Ge(2)] | None
    fold: NotNegativeInt
    fold_seed: NotNegativeInt
    deterministic: bool
    cudnn_benchmark: bool | Literal["auto"]
    memory_format: Literal["auto", "contiguous_format", "channels_last"]
    resume: Literal["auto"] | str | None
    resume_strict: bool
    init_from: str | None
    init_strict: bool
    allow_targets: list[str]
    hooks: dict[str, Any]
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
    trackers: dict[str, Any]


@dataclass(frozen=True)
class NamedOptimizer(OptimizerSettings):
    """One entry of `optimizers`: the parts it trains, the losses it follows, and its own settings."""

    parts: list[str] | None
    losses: list[str] | None


def check_name(name: str) -> None:
    """Raise ConfigError if a run folder cannot have this name."""
    if not re.fullmatch(r"[^\W_][\w.-]*", name):
        remedy = "use letters, digits, '.', '_' and '-', and a letter or digit first"
        raise ConfigError("name", f"{name!r} is not a valid folder name", remedy=remedy)


INTERVALS = ("log_every", "eval_every", "save_every", "keep_every", "histogram_every")
"""How often a run is logged, evaluated and saved: durations, or null for never."""

REPETITIONS = ("seed", "label_noise_seed", "fold_seed", "fold", "data.split_seed", "data.samples_seed")
"""Keys that repeat an experiment: runs that differ only in them are compared as one setting."""

DURATIONS = ("duration", *INTERVALS)
"""Keys whose value is a duration."""

LISTED_GROUPS = ("hook",)
"""Groups of which a run may have several options: `hook=[freeze,stop_at]`."""

PARTIAL_GROUPS = ("task", "optimizer", "scheduler", "precision", "averaging", "mixing", "compile", "parallel",
                  "profiler", "tracker")  # fmt: skip
"""Groups whose options need `_partial_: true`, because the run adds arguments such as the model or the parameters."""

GROUPS = ("data", "model", *PARTIAL_GROUPS)
"""Groups of which every run has an option with a `_target_`."""
