"""`micro_batch_size: auto`: try micro-batch sizes before the run, and choose the largest one that fits into memory."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping
from typing import Any

from hydrant.errors import ConfigError, HydrantError, OutOfMemory, log
from hydrant.training.distributed.base import SINGLE_RANK, Parallel
from hydrant.training.distributed.world import World
from hydrant.training.loop import make_update
from hydrant.training.memory import allocator_message, is_out_of_memory, leave_headroom, release_memory
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.scratch import scratch_trainer

# Trials are eager: compiling for each size takes minutes, and a compiled task mostly needs less memory.
_TRIAL_SETTINGS = {
    "compile": {"_target_": "hydrant.training.Eager", "_partial_": True},
    "parallel": SINGLE_RANK,
    "profiler": {"_target_": "hydrant.training.NoProfiler", "_partial_": True},
}


def find_micro_batch_size(config: Mapping[str, Any], world: World) -> int:
    """Return the largest micro-batch size that fits with some headroom, for a config with `micro_batch_size: auto`.

    All ranks call it; rank 0 tries.

    Raises:
        ConfigError: the config cannot run, or its forward calls collectives, so that no rank can try alone.
        OutOfMemory: not even one sample fits.
    """
    plan = prepare(config)
    if plan.collectives and world.world_size > 1:
        message = (
            f"auto tries on one rank, where {plan.collectives[0]} would wait for the others; give a number"
        )
        raise ConfigError("micro_batch_size", message)
    largest, total = plan.spec.micro_batch_size, max(plan.spec.batch_sizes.values)
    size = world.broadcast_from_rank_zero(lambda: _largest_that_fits(config, largest))
    log.info("micro_batch_size=auto: %d of the %d samples of an update at once", size, total)
    return size


def _largest_that_fits(config: Mapping[str, Any], largest: int) -> int:
    first_error: Exception | None = None
    for size in (size for size in range(largest, 0, -1) if largest % size == 0):
        error = _try_size(config, size)
        if error is None:
            return size
        if first_error is None and not is_out_of_memory(error):
            raise error
        if isinstance(error, HydrantError) and not isinstance(error, ConfigError):
            raise error  # a ConfigError rejects only this size, such as an odd one
        first_error = first_error or error
    message = "micro_batch_size=auto: not even one sample at a time fits"
    reason = allocator_message(first_error)
    raise OutOfMemory(f"{message} ({reason}). Try precision=bf16 or a smaller model") from first_error


def _try_size(config: Mapping[str, Any], size: int) -> Exception | None:
    """Make two updates, because only the second has the optimizer's state in memory; return the error, if any.

    The updates call no collectives, because a rank that runs out of memory would leave the others waiting.
    """
    try:
        plan = prepare({**config, **_TRIAL_SETTINGS, "micro_batch_size": size})
        alone = Parallel(dataclasses.replace(plan.world, world_size=1))
        with (
            leave_headroom(plan.world.device),
            scratch_trainer(dataclasses.replace(plan, parallel=alone)) as trainer,
        ):
            for _ in range(min(2, plan.clock.total_updates)):
                make_update(trainer, measure=True)
    except Exception as error:
        _release_tensors(error)
        return error
    finally:
        release_memory()
    return None


def _release_tensors(error: BaseException | None) -> None:
    """Clear the local variables of an error's frames, which hold tensors; keep its traceback lines."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
