"""`micro_batch_size: auto`: the largest micro-batch that fits into memory, found by trying before the run."""

from __future__ import annotations

import dataclasses
import gc
import traceback
from collections.abc import Mapping
from typing import Any

import torch

from hydrant.bare import bare_run
from hydrant.build import prepare
from hydrant.distributed import World
from hydrant.earlier import saved_config
from hydrant.errors import ConfigError, HydrantError, OutOfMemory
from hydrant.fitting import dry_collectives
from hydrant.logs import log
from hydrant.loop import make_update
from hydrant.memory import is_out_of_memory, said
from hydrant.parallel import ALONE, Ranks
from hydrant.resume import Start

# Not compiled: to compile for each size would take minutes, and what is compiled mostly needs less memory.
_TRIED_WITH = {
    "compile": {"_target_": "hydrant.compilation.Eager", "_partial_": True},
    "parallel": ALONE,
    "profiler": {"_target_": "hydrant.profiling.NoProfiler", "_partial_": True},
}


def settled(config: Mapping[str, Any], start: Start, world: World) -> Mapping[str, Any]:
    """The config with a number where it says `micro_batch_size: auto`: a run that goes on keeps the one it has.

    All ranks call it; rank 0 tries.

    Raises:
        ConfigError: the config cannot run, or its forward calls collectives, so that no rank can try alone.
        OutOfMemory: not even the smallest fits.
    """
    if config["micro_batch_size"] != "auto":
        return config
    if start.checkpoint is None:
        size = _found(config, world)
    else:
        saved = start.checkpoint.parents[1]
        size = world.from_rank_zero(lambda: saved_config(saved, "resume")["micro_batch_size"])
    return {**config, "micro_batch_size": size}


def _found(config: Mapping[str, Any], world: World) -> int:
    prepared = prepare(config)
    share, global_batch_size = prepared.spec.micro_batch_size, prepared.spec.global_batch_size
    collectives = dry_collectives(prepared.task, prepared.train) if world.world_size > 1 else []
    if collectives:
        told = f"auto tries on one rank, where {collectives[0]} would wait for the others; give a number"
        raise ConfigError("micro_batch_size", told)
    size = world.from_rank_zero(lambda: _largest_that_fits(config, share))
    log.info("micro_batch_size=auto: %d of the %d samples of an update at once", size, global_batch_size)
    return size


def _largest_that_fits(config: Mapping[str, Any], share: int) -> int:
    full: Exception | None = None
    for size in (size for size in range(share, 0, -1) if share % size == 0):
        error = _try(config, size)
        if error is None:
            return size
        if full is None and not is_out_of_memory(error):
            raise error
        if isinstance(error, HydrantError) and not isinstance(error, ConfigError):
            raise error  # else of a size that a part does not take, such as an odd one or one sample
        full = full or error
    told = "micro_batch_size=auto: not even one sample at a time fits"
    raise OutOfMemory(f"{told} ({said(full)}). Try precision=bf16 or a smaller model") from full


def _try(config: Mapping[str, Any], size: int) -> Exception | None:
    """Make two updates, the second beside the optimizer's state, with a run of its own; what that raised.

    What ranks exchange is left out, for one that is out of memory would leave the others waiting.
    """
    try:
        prepared = prepare({**config, **_TRIED_WITH, "micro_batch_size": size})
        prepared = dataclasses.replace(
            prepared, parallel=Ranks(dataclasses.replace(prepared.world, world_size=1))
        )
        with bare_run(prepared) as run:
            for _ in range(min(2, prepared.clock.total_updates)):
                make_update(run, measure=True)
    except Exception as error:
        _release(error)
        return error
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return None


def _release(error: BaseException | None) -> None:
    """Let go of the tensors that the frames of an error hold; its lines stay."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
