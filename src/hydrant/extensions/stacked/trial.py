"""Try whether jobs train together. Imports torch, so it runs in a process of its own."""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from hydrant.config.flat import flatten
from hydrant.errors import ConfigError, log, typed_line
from hydrant.extensions.stacked.check import check_plan, signature, try_lanes
from hydrant.extensions.stacked.lanes import CannotStack
from hydrant.extensions.stacked.plan import ONLY_ONE, J, Lanes, StackPlan, even_parts
from hydrant.files.user_files import raise_limit
from hydrant.schedules import Plateau
from hydrant.sweeps.preflight import config_error, without_repetitions
from hydrant.training.distributed.env import num_cores
from hydrant.training.memory import available_bytes
from hydrant.training.prepare.build import prepare, prepare_like
from hydrant.training.trainer import Plan

_MEMORY_RATIO = 0.5
"""The part of the free memory that the stacks of a machine may take. The rest is for temporary tensors, which are not
counted."""
_FILES_PER_LANE = 6
"""Open files of a lane: the lock of its folder, its log and its rows, and those of a checkpoint that is written."""


def plan_group(
    configs: Mapping[J, Mapping[str, Any]], lanes: Lanes, num_processes: int | None, num_programs: int
) -> StackPlan[J]:
    """Return how jobs train whose configs may be the same program. Each config is prepared once.

    Args:
        configs: of the jobs.
        lanes, num_processes: as in `plan_stacks`.
        num_programs: how many programs share the processes.
    """
    alone, alike = dict[J, str | ConfigError](), defaultdict[Hashable, list[J]](list)
    known = dict[str, Hashable]()  # signatures; repetitions share one
    first: Plan | None = None
    for job, config in configs.items():
        key = without_repetitions(config)
        try:
            if key not in known:
                plan = prepare(config, is_preview=True) if first is None else prepare_like(config, first)
                check_plan(plan)  # each: also the schedules of a later one may count seconds
                schedules = (s for fields in plan.schedules.values() for s in fields.values())
                if first is not None and any(isinstance(schedule, Plateau) for schedule in schedules):
                    prepare(config, is_preview=True)  # checks the metric that the plateau waits for
                first, known[key] = first or plan, signature(plan)
            alike[known[key]].append(job)
        except CannotStack as reason:  # neither can the others
            why = str(reason) if len(configs) > 1 else ONLY_ONE
            alone, alike = {job: config_error(configs[job]) or why for job in configs}, {}
            break
        except Exception as error:  # such as damaged data: the job itself reports it
            log.debug("a job cannot be prepared", exc_info=error)
            why = f"it cannot be prepared ({type(error).__name__})"
            alone[job] = error.with_traceback(None) if isinstance(error, ConfigError) else why
    stacks = list[list[J]]()
    for jobs in alike.values():
        assert first is not None
        size = _bytes_per_lane([configs[job] for job in jobs], first)
        if isinstance(size, str):
            alone |= dict.fromkeys(jobs, size)
        else:
            count = _num_stacks(len(jobs), size, lanes, num_processes, num_programs, first.world.device)
            stacks += even_parts(jobs, count)
    stacks += [[job] for job in alone]
    reasons = {job: why for job, why in alone.items() if isinstance(why, str)}
    errors = {job: why for job, why in alone.items() if isinstance(why, ConfigError)}
    return StackPlan(stacks, reasons, errors)


def _bytes_per_lane(configs: Sequence[Mapping[str, Any]], like: Plan) -> int | str:
    """Try the two most different jobs of a program; return what memory a lane needs, or why the jobs train alone."""
    if len(configs) == 1:
        return ONLY_ONE
    tried = _most_different(configs)
    try:
        return try_lanes([prepare_like(config, like) for config in (*tried, *tried)])
    except CannotStack as reason:
        return str(reason)
    except Exception as error:
        log.debug("the trial of two jobs failed", exc_info=error)
        return f"trying it failed ({typed_line(error)})"


def _most_different(configs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first config, and the config that differs from it in the most keys."""
    first = flatten(configs[0])
    rest = [flatten(config) for config in configs[1:]]
    counts = [sum(other.get(key) != value for key, value in first.items()) for other in rest]
    return [configs[0], configs[1 + counts.index(max(counts))]]


def _num_stacks(
    count: int, size: int, lanes: Lanes, num_processes: int | None, num_programs: int, device: torch.device
) -> int:
    """Return the number of stacks: as few as the limits allow, but at least one for each process."""
    at_once = num_processes or torch.cuda.device_count() or num_cores()
    if lanes != "auto":
        return math.ceil(count / lanes)
    fitting = int(_MEMORY_RATIO * available_bytes(device) / max(size, 1))
    if device.type == "cpu":
        fitting //= at_once
    most = max(min(fitting, raise_limit() // _FILES_PER_LANE), 1)
    return max(math.ceil(count / most), min(math.ceil(at_once / num_programs), count // 2))
