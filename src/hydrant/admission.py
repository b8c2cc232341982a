"""Whether the jobs of a sweep can run, before the first one starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydrant.earlier import earlier_start
from hydrant.errors import ConfigError, HydrantError, RecordError
from hydrant.executors.base import preload
from hydrant.isolation import ProcessDied, Stopped, call_isolated

_ALIKE = ("name", "seed")
"""Keys that do not decide whether a run can start."""


def is_finished(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether a job has nothing left to do."""
    with suppress(HydrantError):  # the job itself will say more
        return earlier_start(config, folder).is_finished
    return False


def refuse_another(config: Mapping[str, Any], folder: Path) -> None:
    """Raises ConfigError where the folder of a job belongs to a run of another config."""
    with suppress(RecordError):
        earlier_start(config, folder)


def refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(key, reason) why each checked config cannot run on this machine, ("", "") where it can.

    Raises:
        Stopped: a signal arrived meanwhile.
    """
    keys = [repr(sorted((k, v) for k, v in config.items() if k not in _ALIKE)) for config in configs]
    distinct = dict(zip(keys, configs, strict=True))
    answer = call_isolated(_refusals, (list(distinct.values()),), preload=preload(configs))
    if answer.signum is not None:
        print("stopped by a signal before the first job", file=sys.stderr)
        raise Stopped(128 + answer.signum)
    if isinstance(answer.result, ProcessDied):  # the job itself will say more
        return [("", "")] * len(configs)
    refused = dict(zip(distinct, answer.result, strict=True))
    return [refused[key] for key in keys]


def _refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [_refusal(config) for config in configs]


def _refusal(config: Mapping[str, Any]) -> tuple[str, str]:
    from hydrant.build import prepare  # brings in torch

    try:
        prepare(config, is_plan=True)
    except ConfigError as error:
        return error.key, error.reason
    except Exception:  # damaged data, say: of no other job's concern, and its own job tells it
        return "", ""
    return "", ""
