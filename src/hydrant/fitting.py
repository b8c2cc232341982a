"""Do the parts of a config fit each other? What can be told only once they are made, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hydrant.batch import Batch, Outcome
from hydrant.collectives import Collective, Collectives
from hydrant.data import Data, Source, StreamSpec
from hydrant.distributed import World
from hydrant.errors import ConfigError, DataError, location, suggestion, typed_line
from hydrant.metrics import check_measurement
from hydrant.mixing import Mixing
from hydrant.profiling import count_flops


def geometry(config: Mapping[str, Any], world: World, num_samples: int) -> StreamSpec:
    """How an update's samples are dealt to ranks and micro-batches; ConfigError where they do not divide."""
    batch_size, micro, ranks = config["global_batch_size"], config["micro_batch_size"], world.world_size
    if batch_size > num_samples:
        limit = "" if config["limit_train_samples"] is None else " (limit_train_samples)"
        raise ConfigError(
            "global_batch_size",
            f"{batch_size} is more than the {num_samples} training samples there are{limit}; "
            f"give {num_samples} or fewer",
        )
    if batch_size % ranks:
        near = _multiples(batch_size, ranks)
        raise ConfigError("global_batch_size", f"{batch_size} is not divisible by {ranks} ranks; {near} is")
    micro = batch_size // ranks if micro in (None, "auto") else micro
    if batch_size % (micro * ranks):
        share = batch_size // ranks
        fitting = ", ".join(str(n) for n in range(1, share + 1) if share % n == 0)
        raise ConfigError(
            "micro_batch_size",
            f"{micro} samples on each of {ranks} rank(s) do not divide global_batch_size={batch_size}; "
            f"these do: {fitting}",
        )
    return StreamSpec(config["seed"], batch_size, micro, world.rank, ranks, world.device)


def eval_batch_size(config: Mapping[str, Any], world: World, num_samples: int) -> int:
    """How many samples a rank evaluates at once: what is configured, or so few that every rank has some."""
    if num_samples < world.world_size:
        told = f"{num_samples} validation samples are too few for {world.world_size} ranks; give more"
        raise ConfigError("limit_val_samples", told)
    return min(config["eval_batch_size"], num_samples // world.world_size)


def _multiples(number: int, divisor: int) -> str:
    below = number - number % divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


def scaled_lr(config: Mapping[str, Any]) -> dict[str, float]:
    """The lr for this batch size, where `optimizer.lr` is for one of `lr_base_size`: Goyal et al., 2017; timm."""
    rule, ratio = config["lr_scaling"], config["global_batch_size"] / config["lr_base_size"]
    if rule is None:
        return {}
    if "lr" not in config["optimizer"]:
        raise ConfigError("lr_scaling", "this optimizer has no lr to scale; leave lr_scaling out")
    return {"lr": config["optimizer"]["lr"] * (ratio if rule == "linear" else ratio**0.5)}


def limited(source: Source, num_samples: int | None) -> Source:
    """The first samples of a source, at most so many; None is all."""
    return source if num_samples is None else source.first(min(num_samples, source.num_samples))


def few(source: Source, num_samples: int) -> Batch:
    """So many samples that can be read, or all if there are fewer, on the host; the first ones, if they can."""
    num_samples = min(num_samples, source.num_samples)
    host = StreamSpec(0, 1, 1, 0, 1, torch.device("cpu"))
    for reach in (num_samples, source.num_samples):
        for batch in source.first(reach).batches(host, num_samples):
            if len(batch.targets) == num_samples:
                return batch
    raise DataError(f"no {num_samples} samples in a row can be read; the log names those that cannot")


def dry_forward(task: Any, data: Data, val: Source) -> tuple[int, Outcome]:
    """One sample through the model on the host: refuses a model that does not fit the data; counts FLOPs."""
    batch = few(val, 1)
    try:
        flops, outcome = count_flops(task, batch)
    except Exception as error:  # a user's model raises anything, and there is no train.log yet
        raise ConfigError(
            "model",
            f"does not take the samples of data, of shape {list(data.input_shape)}: {typed_line(error)} "
            f"(at {location(error)}). "
            "Choose another model, or set its own keys to that shape",
        ) from error
    for name, value in outcome.measurements.items():
        if not torch.is_tensor(value):  # a user's task gives anything
            raise ConfigError("task", f"measures {name!r} as {value!r}, which is no tensor")
        check_measurement(name, value.dtype, value.shape)
    return flops, outcome


def dry_collectives(task: Any, train: Source) -> list[Collective]:
    """The collectives of a training forward: that of two samples, on the host."""
    batch = few(train, 2)
    buffers, was_training = [buffer.clone() for buffer in task.buffers()], task.training
    try:
        with torch.random.fork_rng(devices=[]), Collectives() as collectives:
            task.train().forward(batch)
    except Exception as error:  # a user's model raises anything
        told = f"fails in training: {typed_line(error)} (at {location(error)}); compile=eager tells more"
        raise ConfigError("model", told) from error
    task.train(was_training)
    for buffer, before in zip(task.buffers(), buffers, strict=True):
        buffer.copy_(before)
    return collectives.found


def dry_mixing(task: Any, train: Source, mixing: Mixing) -> None:
    """Two samples, mixed, through the task on the host: refuses a mixing that does not fit the data or the task."""
    batch = few(train, 2)
    try:
        mixed = mixing(batch, 0, 0, 0)
        if mixed is not batch:
            count_flops(task, mixed)
    except Exception as error:  # timm and a user's task raise anything
        told = f"does not fit this data and task: {typed_line(error)} (at {location(error)}); use mixing=none"
        raise ConfigError("mixing", told) from error


def check_best(key: str, metric: str, mode: str, splits: Sequence[str], task: Any, outcome: Outcome) -> None:
    """Refuse a metric that no evaluation will give, and the highest loss as the best; `key` begins their keys."""
    losses = _loss_names(outcome)
    own = (*losses, *outcome.measurements, *task.metrics)
    names = {f"{split}/{name}" for split in splits for name in own}
    if metric not in names:
        raise ConfigError(f"{key}metric", f"no evaluation gives {metric!r}{suggestion(metric, names)}")
    if metric.partition("/")[2] in losses and mode == "max":
        raise ConfigError(f"{key}mode", f"{metric} is best where it is lowest; give {key}mode=min")


def _loss_names(outcome: Outcome) -> set[str]:
    return {"loss"} | (set(outcome.losses) if len(outcome.losses) > 1 else set())
