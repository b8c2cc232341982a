"""What a run finds out before it begins: the micro-batch size that it searches or keeps, and the time of an update."""

import math
from collections.abc import Mapping
from typing import Any

from hydrant.errors import log
from hydrant.runs.resume import Start, saved_config
from hydrant.terminal.console import show_activity
from hydrant.training.distributed.world import World
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.micro_batch import find_micro_batch_size, time_updates
from hydrant.training.train_state import saved_state
from hydrant.training.trainer import Plan


def resolve_micro_batch_size(config: Mapping[str, Any], start: Start, world: World) -> Mapping[str, Any]:
    """Replace `micro_batch_size: auto` by a number. A run that continues keeps the size it has. All ranks call it."""
    if config["micro_batch_size"] != "auto":
        return config
    if start.checkpoint is None:
        size = find_micro_batch_size(config, world)
    else:
        size = saved_config(start.run, "resume").get("micro_batch_size")  # rank 0 has read it
    return {**config, "micro_batch_size": size}


def keep_micro_batch_size(config: Mapping[str, Any], start: Start, world: World) -> Mapping[str, Any]:
    """Return the config with the micro-batch size that a run has, if it continues on ranks that can share it."""
    sizes = config["global_batch_size"]
    if config["micro_batch_size"] is not None or start.checkpoint is None or sizes == "all":
        return config
    size = saved_state(start.checkpoint).micro_batch_size
    shared = math.gcd(*(sizes.values() if isinstance(sizes, Mapping) else [sizes]))
    of_rank = shared // world.world_size
    is_changed = any(key.startswith(("micro_batch_size", "global_batch_size")) for key in start.changes)
    if size is None or is_changed or of_rank == size or of_rank % size:
        return config
    log.info("micro-batches of %d samples, as before, although the number of ranks has changed", size)
    return {**config, "micro_batch_size": size}


def prepare_timed(config: Mapping[str, Any], start: Start) -> Plan:
    """Prepare a run. If durations are in seconds, measure how long its updates take; all ranks call it.

    A run that continues keeps the times from its beginning, so that its horizon and its schedules stay the same.
    """
    saved = {} if start.checkpoint is None else saved_state(start.checkpoint).update_seconds
    known = {int(size): seconds for size, seconds in saved.items()}
    plan = prepare(config, update_seconds=known)
    if not (sizes := plan.clock.unmeasured_sizes):
        return plan
    show_activity("measuring how long an update takes")
    measured = time_updates(plan, sizes)
    for size, seconds in measured.items():
        log.info("an update of %d samples takes %.4g s, which durations in seconds count by", size, seconds)
    return prepare(config, update_seconds={**known, **measured})
