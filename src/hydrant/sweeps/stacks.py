"""Which jobs of a sweep train together, as the lanes of a stack in one process."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError
from hydrant.sweeps.fork_server.call import ProcessDied
from hydrant.sweeps.preflight import call_before_jobs
from hydrant.sweeps.stack_plan import Lanes, StackPlan, program_of

_Configs = Mapping[Path, Mapping[str, Any]]


def plan_stacks(configs: _Configs, lanes: Lanes, num_processes: int | None) -> StackPlan[Path]:
    """Return how jobs with these checked configs train.

    Jobs stack if their configs are the same program. Whether torch can map it over lanes is tried with two of them, in
    a process of its own.

    Args:
        configs: of the jobs, by folder.
        lanes: the most lanes of a stack.
        num_processes: how many stacks train at once on this machine, over which `auto` spreads the lanes; None: the
            GPUs, or the cores if there are none.

    Raises:
        Stopped: a signal arrived.
    """
    groups = defaultdict[str, dict[Path, Mapping[str, Any]]](dict)
    for folder, config in configs.items():
        groups[program_of(config)][folder] = config
    plan = call_before_jobs([*configs.values()], _plan_groups, [*groups.values()], lanes, num_processes)
    if isinstance(plan, ProcessDied):
        return StackPlan(
            [[folder] for folder in configs], {next(iter(configs)): f"trying it failed ({plan})"}
        )
    places = {folder: place for place, folder in enumerate(configs)}
    stacks = sorted(plan.stacks, key=lambda stack: places[stack[0]])
    return StackPlan(stacks, plan.reasons, plan.errors)


def _plan_groups(groups: Sequence[_Configs], lanes: Lanes, num_processes: int | None) -> StackPlan[Path]:
    """Prepare and try the jobs of each group; imports torch."""
    from hydrant.config.instantiate import share_factories
    from hydrant.sweeps.stack_trial import plan_group

    stacks, reasons, errors = list[Sequence[Path]](), dict[Path, str](), dict[Path, ConfigError]()
    for group in groups:
        with share_factories():
            found = plan_group(group, lanes, num_processes, len(groups))
        stacks += found.stacks
        reasons |= found.reasons
        errors |= found.errors
    return StackPlan(stacks, reasons, errors)
