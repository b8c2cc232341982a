"""Which jobs of a sweep train together, as the lanes of a stack in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hydrant.config.flat import flatten
from hydrant.errors import ConfigError
from hydrant.runs.console import notice
from hydrant.signals import Stopped, signal_name
from hydrant.sweeps.executors.base import paths_to_preload
from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated
from hydrant.sweeps.stack_plan import Lanes, StackPlan

_ANY_VALUE = ("seed", "name", "claim", "tags", "notes", "init_from", "init_strict", "patience", "max_skipped", "resume",
              "max_grad_norm", "max_grad_value")  # fmt: skip
"""Keys in which the lanes of a stack may differ."""

_ANY_GROUPS = ("scheduler.", "schedules.")
"""Groups in which the lanes may differ in any key."""

_DURATIONS_OF_AVERAGES = ("averaging.start_after", "averaging.start", "averaging.every")

_FRACTIONS = ("averaging.", "optimizer.", "optimizers.", "task.", "model.", "param_groups.")
"""Groups in which the lanes may differ in fractions."""


def plan_stacks(configs: Sequence[Mapping[str, Any]], lanes: Lanes, num_processes: int | None) -> StackPlan:
    """Return how jobs with these checked configs train.

    Jobs stack if their configs are the same program. Whether torch can map it over lanes is tried with two of them, in
    a process of its own.

    Args:
        configs: of the jobs.
        lanes: the most lanes of a stack.
        num_processes: how many stacks train at once on this machine, over which `auto` spreads the lanes; None: the
            GPUs, or the cores if there are none.

    Raises:
        Stopped: a signal arrived.
    """
    groups = defaultdict[str, list[int]](list)
    for number, config in enumerate(configs):
        groups[program_of(config)].append(number)
    arguments = ([[(n, configs[n]) for n in group] for group in groups.values()], lanes, num_processes)
    call = call_isolated(_plan_groups, arguments, preload=paths_to_preload(configs))
    if call.signum is not None:
        notice(f"stopped by {signal_name(call.signum)} before the first job")
        raise Stopped(128 + call.signum)
    if isinstance(call.result, ProcessDied):
        return StackPlan([[n] for n in range(len(configs))], {0: f"trying it failed ({call.result})"})
    return call.result


def program_of(config: Mapping[str, Any]) -> str:
    """Return a text that is equal for configs that may be the same program.

    >>> one, other = {"seed": 0, "optimizer": {"lr": 0.1}}, {"seed": 1, "optimizer": {"lr": 0.2}}
    >>> program_of(one) == program_of(other) != program_of({"seed": 0, "optimizer": {"lr": 0.1, "nesterov": True}})
    True
    """
    kept = {key: _without_fractions(key, value) for key, value in flatten(config).items()}
    return repr(sorted((key, value) for key, value in kept.items() if value is not ...))


def _without_fractions(key: str, value: Any) -> Any:
    """Return what must be equal in the lanes of a stack: `...` for nothing."""
    if key in _ANY_VALUE:
        return None if value is None and key.startswith("max_grad") else ...
    if key.startswith(_ANY_GROUPS):
        return ...
    if key in _DURATIONS_OF_AVERAGES:
        return ...
    if key.startswith(_FRACTIONS):
        if isinstance(value, list):
            return [float if isinstance(item, float) else item for item in value]
        return float if isinstance(value, float) else value
    return value


def _plan_groups(
    groups: Sequence[Sequence[tuple[int, Mapping[str, Any]]]], lanes: Lanes, num_processes: int | None
) -> StackPlan:
    """Prepare and try the jobs of each group; imports torch."""
    from hydrant.config.instantiate import share_factories
    from hydrant.sweeps.stack_trial import plan_group

    stacks, reasons, errors = list[list[int]](), dict[int, str](), dict[int, ConfigError]()
    for group in groups:
        numbers, configs = [n for n, _ in group], [config for _, config in group]
        with share_factories():
            found = plan_group(configs, lanes, num_processes, len(groups))
        stacks += [[numbers[n] for n in stack] for stack in found.stacks]
        reasons |= {numbers[n]: reason for n, reason in found.reasons.items()}
        errors |= {numbers[n]: error for n, error in found.errors.items()}
    return StackPlan(sorted(stacks), reasons, errors)
