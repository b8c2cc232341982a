"""Check that the jobs of a sweep can run, before the first one starts."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydrant.config.flat import flatten
from hydrant.config.groups import REPETITIONS
from hydrant.errors import ConfigError, HydrantError, RecordError
from hydrant.runs.folder import HYDRA, RunFolder, RunStatus
from hydrant.runs.resume import existing_run
from hydrant.signals import Stopped, signal_name
from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated
from hydrant.sweeps.plan import usable_plan
from hydrant.terminal.console import begin_activity, clear_activity, notice, relative, show_activity

if TYPE_CHECKING:
    from hydrant.training.trainer import Plan

T = TypeVar("T")

_NEUTRAL_KEYS = ("name", *REPETITIONS)
"""Keys that do not decide whether a run can start. Of jobs that differ only in these, one is checked."""

_BUILT_GROUPS = ("task", "model", "averaging", "param_groups")
"""Groups whose values may decide whether the parts can be built and fit each other."""

_LOST_SECONDS = 300.0
"""A run on another machine is taken for lost if it has not written its record for this many seconds."""


def is_finished(config: Mapping[str, Any], run: RunFolder) -> bool:
    """Return whether the folder holds a finished run of this config."""
    with suppress(HydrantError):  # the job itself reports it
        return existing_run(config, run).is_finished
    return False


def check_same_config(config: Mapping[str, Any], folder: Path) -> None:
    """Raise ConfigError if the folder holds a run of another config."""
    with suppress(RecordError):
        existing_run(config, RunFolder(folder))


def trained_elsewhere(folder: Path) -> str:
    """Return why a job must not continue in its folder: another machine trains there; "" if none does.

    If that machine seems lost, a message is printed and the job may continue.
    """
    run = RunFolder(folder)
    if run.state != RunStatus.RUNNING_ELSEWHERE:
        return ""
    seconds = time.time() - run.record_time  # below 0 if one of the clocks was set
    where = f"{relative(folder)} holds a run on {run.summary['host']}"
    message = f"{where}, which wrote its record {seconds:.0f} s ago"
    if seconds < _LOST_SECONDS:
        remedy = f"if that machine is lost, it continues here {_LOST_SECONDS:.0f} s after its last record"
        return f"{message}; wait for it; {remedy}"
    notice(f"{message}: that machine is taken for lost, so the run continues here")
    return ""


def describe_start(folder: Path, jobs: Mapping[Path, bool], *, keeps_plan: bool) -> str:
    """Return the first line of a sweep: how many jobs are finished, begun and new, and which others there are.

    Args:
        jobs: whether the job in each folder is finished.
        keeps_plan: whether another command is at work there, whose jobs stay planned.
    """
    counts = Counter("finished" if finished else _begun_or_new(job) for job, finished in jobs.items())
    counted = ", ".join(f"{counts[k]} {k}" for k in ("finished", "begun before", "new") if counts[k])
    text = f"{relative(folder)}: {len(jobs)} job{'s' * (len(jobs) != 1)}: {counted}"
    planned = [(folder / job.run).resolve() for job in usable_plan(folder)[0].jobs]
    others = Counter(_begun_or_new(job) for job in planned if job not in jobs)
    waits = "of another command, which is at work, wait" if keeps_plan else "that never began are left out"
    said = {"begun before": "of other commands are there, which compare reads too", "new": waits}
    return text + "".join(f"; {others[kind]} {what}" for kind, what in said.items() if others[kind])


def _begun_or_new(folder: Path) -> str:
    return "begun before" if (folder / HYDRA).is_dir() else "new"


def find_config_errors(
    configs: Sequence[Mapping[str, Any]], preload: Sequence[str]
) -> list[ConfigError | None]:
    """Return why each checked config cannot run on this machine; None if it can.

    Args:
        configs: of the jobs.
        preload: the paths of what the fork server imports.

    Raises:
        Stopped: a signal arrived.
    """
    keys = [without_repetitions(config) for config in configs]
    distinct = dict(zip(keys, configs, strict=True))
    result = call_before_jobs(preload, prepare_all, list(distinct.values()))
    if isinstance(result, ProcessDied):  # the job that causes it reports it
        return [None] * len(configs)
    errors = dict(zip(distinct, result, strict=True))
    return [errors[key] for key in keys]


def call_before_jobs(preload: Sequence[str], function: Callable[..., T], *arguments: Any) -> T | ProcessDied:
    """Call a function about jobs in a process of its own, before the first one starts.

    Raises:
        Stopped: a signal arrived.
    """
    call = call_isolated(function, arguments, preload)
    if call.signum is not None:
        notice(f"stopped by {signal_name(call.signum)} before the first job")
        raise Stopped(128 + call.signum)
    return call.result


def without_repetitions(config: Mapping[str, Any]) -> str:
    """Return a text that is equal for configs that differ only in keys that do not decide whether a run can start."""
    return repr(sorted((key, value) for key, value in config.items() if key not in _NEUTRAL_KEYS))


_ANY_VALUE = ("seed", "name", "claim", "tags", "notes", "init_from", "init_strict", "patience", "max_skipped", "resume",
              "max_grad_norm", "max_grad_value")  # fmt: skip
"""Keys in which the configs of a program may differ."""

_ANY_GROUPS = ("scheduler.", "schedules.")
"""Groups in which they may differ in any key."""

_DURATIONS_OF_AVERAGES = ("averaging.start", "averaging.every")  # also averaging.start_after

_FRACTIONS = ("averaging.", "optimizer.", "optimizers.", "task.", "model.", "param_groups.")
"""Groups in which they may differ in fractions."""


def program_of(config: Mapping[str, Any]) -> str:
    """Return a text that is equal for configs that may be the same program.

    >>> one, other = {"seed": 0, "optimizer": {"lr": 0.1}}, {"seed": 1, "optimizer": {"lr": 0.2}}
    >>> program_of(one) == program_of(other) != program_of({"seed": 0, "optimizer": {"lr": 0.1, "nesterov": True}})
    True
    """
    kept = {key: _without_fractions(key, value) for key, value in flatten(config).items()}
    return repr(sorted((key, value) for key, value in kept.items() if value is not ...))


def _without_fractions(key: str, value: Any) -> Any:
    """Return the values that must be equal in the configs of a program; `...` for a value that may differ."""
    if key in _ANY_VALUE:
        return None if value is None and key.startswith("max_grad") else ...
    if key.startswith(_ANY_GROUPS + _DURATIONS_OF_AVERAGES):
        return ...
    if key.startswith(_FRACTIONS):
        if isinstance(value, list):
            return [float if isinstance(item, float) else item for item in value]
        return float if isinstance(value, float) else value
    return value


def prepare_all(configs: Sequence[Mapping[str, Any]]) -> list[ConfigError | None]:
    """Return why each checked config cannot run on this machine; None if it can. Imports torch.

    Of configs that differ only in numbers of optimizers and schedules, the first one that can run is prepared; for the
    others, only what depends on these numbers is checked. Configs are checked one after the other, because a plan holds
    its data.
    """
    begin_activity("hydrant train")  # this process has streams of its own
    alike, errors = defaultdict[str, list[int]](list), dict[int, ConfigError | None]()
    for number, config in enumerate(configs):
        built = [config[group] for group in _BUILT_GROUPS]
        alike[repr((program_of(config), built))].append(number)
    for numbers in alike.values():
        plan: Plan | None = None
        for number in numbers:
            show_activity(f"checked {len(errors):,} of {len(configs):,} jobs")
            errors[number], plan = _check(configs[number], plan)
    clear_activity()
    return [errors[number] for number in range(len(configs))]


def _check(config: Mapping[str, Any], like: "Plan | None") -> "tuple[ConfigError | None, Plan | None]":
    """Return why a checked config cannot run on this machine, and a plan with which configs like it are checked."""
    from hydrant.training.prepare.build import prepare, prepare_numbers  # imports torch

    try:
        if like is None:
            return None, prepare(config, is_preview=True)
        prepare_numbers(config, like)
    except ConfigError as error:
        return error.with_traceback(None), like
    except Exception:  # such as damaged data: its job reports it, and the other jobs run
        return None, like
    return None, like
