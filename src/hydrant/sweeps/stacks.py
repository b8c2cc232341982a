"""Which jobs of a sweep train together, as the lanes of a stack in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hydrant.errors import ConfigError
from hydrant.sweeps.fork_server.call import ProcessDied
from hydrant.sweeps.preflight import call_before_jobs
from hydrant.sweeps.stack_plan import Lanes, StackPlan, program_of


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
    jobs = [[(n, configs[n]) for n in group] for group in groups.values()]
    plan = call_before_jobs(configs, _plan_groups, jobs, lanes, num_processes)
    if isinstance(plan, ProcessDied):
        return StackPlan([[n] for n in range(len(configs))], {0: f"trying it failed ({plan})"})
    return plan


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
