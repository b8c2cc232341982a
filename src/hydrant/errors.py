"""Every exception of Hydrant.

    HydrantError                 anything a user can cause or must know; its message is for them
    ├── ConfigError              the configuration or the command line is wrong; nothing was started   (exit 2)
    ├── DataError                a sample or a file of the data set cannot be read                      (exit 1)
    ├── CheckpointError          a checkpoint is missing, damaged or of another run                     (exit 1)
    ├── NonFiniteError           the loss or a gradient became NaN or infinite                          (exit 1)
    ├── ExportError              an exported model does not give the trained model's outputs            (exit 1)
    ├── JobFailed                a job of a sweep failed; raised in the sweep's process                 (exit 1)
    └── Interrupted              a signal asked the run to stop; the checkpoint is saved                (exit 130, 143)
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class HydrantError(Exception):
    """Base of every error whose message is written for the user."""

    exit_status = 1


class ConfigError(HydrantError):
    """The configuration is wrong. `key` is the config key to change, `""` if there is no single one."""

    exit_status = 2

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key


class DataError(HydrantError):
    """A sample or a file of the data set cannot be read."""


class CheckpointError(HydrantError):
    """A checkpoint is missing, damaged or of another run."""


class NonFiniteError(HydrantError):
    """The loss or a gradient became NaN or infinite between two log points."""

    def __init__(self, metric: str, first_update: int, last_update: int) -> None:
        super().__init__(
            f"{metric} became NaN or infinite between updates {first_update} and {last_update}. "
            "Lower optimizer.lr, lengthen scheduler.warmup, set max_grad_norm, or use precision=fp32."
        )


class ExportError(HydrantError):
    """An exported model does not give the trained model's outputs, or the format cannot hold it."""


class JobFailed(HydrantError):
    """A job of a sweep failed. Holds one string only, so that it travels between processes."""


class Interrupted(HydrantError):
    """A signal asked the run to stop; its state was saved at the end of the update."""

    def __init__(self, signum: int, num_updates: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(signum).name} after update {num_updates}; "
            "the same command in the same run folder continues it"
        )
        self.exit_status = 128 + signum


def nearest(name: str, options: Iterable[str], limit: int = 3) -> list[str]:
    """The options most like `name`, best first.

    >>> nearest("adamm", ["adamw", "adam", "sgd"])
    ['adam', 'adamw']
    """
    return difflib.get_close_matches(name, list(options), n=limit, cutoff=0.6)


def unknown_name(key: str, kind: str, name: str, options: Iterable[str]) -> ConfigError:
    """The error for a name that is not among the options: lists the nearest, and all if they are few.

    >>> print(unknown_name("model.name", "activation", "rellu", ["relu", "gelu"]))
    model.name: unknown activation 'rellu'; did you mean 'relu'? Options: gelu, relu
    """
    options = sorted(set(options))
    close = nearest(name, options)
    hint = "; did you mean " + ", ".join(repr(c) for c in close) + "?" if close else ";"
    listing = f" Options: {', '.join(options)}" if len(options) <= 40 else f" ({len(options)} options)"
    return ConfigError(key, f"unknown {kind} {name!r}{hint}{listing}")
