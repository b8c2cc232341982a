"""The schema of a run's config. Groups are open: their keys are checked against their target's signature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class Best:
    """Which metric of an evaluation decides the best checkpoint."""

    metric: str = MISSING
    mode: str = MISSING  # max or min


@dataclass
class TrainConfig:
    """Every key of `conf/train.yaml`, where each is explained; the defaults live there alone.

    Durations (`Any`) are written 500 (updates), 10ep, 64000sa or, within the run, 5%.
    """

    name: str | None = MISSING
    seed: int = MISSING
    duration: Any = MISSING
    global_batch_size: int = MISSING
    micro_batch_size: int | None = MISSING
    eval_batch_size: int = MISSING
    log_every: Any = MISSING
    eval_every: Any = MISSING
    save_every: Any = MISSING
    keep_last: int = MISSING
    best: Best = field(default_factory=Best)
    max_grad_norm: float | None = MISSING
    max_skipped: int = MISSING
    limit_train_samples: int | None = MISSING
    limit_val_samples: int | None = MISSING
    deterministic: bool = MISSING
    resume: str | None = MISSING
    init_from: str | None = MISSING
    allow_targets: list[str] = MISSING
    data: Any = MISSING
    model: Any = MISSING
    task: Any = MISSING
    optimizer: Any = MISSING
    scheduler: Any = MISSING
    schedules: dict[str, Any] = MISSING
    precision: Any = MISSING
    compile: Any = MISSING
    parallel: Any = MISSING
    tracker: Any = MISSING
