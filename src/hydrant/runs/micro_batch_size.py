"""The micro-batch size of a run that searches it, or that continues with the size that it had."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from hydrant.runs.resume import Start, saved_config
from hydrant.training.distributed.world import World
from hydrant.training.prepare.micro_batch import find_micro_batch_size
from hydrant.training.train_state import saved_state

log = logging.getLogger("hydrant")


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
