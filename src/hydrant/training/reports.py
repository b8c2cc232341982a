"""What a run logs while it trains: rows of metrics, pictures and histograms."""

import math
import time
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import as_real
from hydrant.data.augment import NoMixing
from hydrant.errors import log
from hydrant.optimizers.clipping import full_tensor
from hydrant.trackers.base import Histogram
from hydrant.training.distributed.ddp import uses_batch_statistics
from hydrant.training.evaluation import draw
from hydrant.training.metrics import plain_name
from hydrant.training.nonfinite import non_finite_error
from hydrant.training.pictures import Draw, input_pictures
from hydrant.training.plotting import draw_pixels
from hydrant.training.trainer import Trainer


def training_row(trainer: Trainer, grad_norms: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the means since the last log point, the values of the schedules and the pace.

    Raises:
        NonFiniteError: a mean or a gradient norm is NaN or infinite.
    """
    plan, state, schedules = trainer.plan, trainer.state, trainer.optimizers.schedules
    measured = {f"optim/{name}": norm for name, norm in grad_norms.items()}
    row = {k if "/" in k else f"train/{k}": v for k, v in trainer.meter.read(measured).items()}
    for name, value in row.items():
        if not math.isfinite(value):
            is_here = plan.world.all_gather(trainer.meter.first_non_finite() is not None)
            raise non_finite_error(trainer, name, is_here)
    latest = schedules.values(state.num_updates - 1)  # of the update that was just made
    row |= {f"optim/{name}": value for name, value in latest.items()}
    if plan.precision.scales_loss:
        row["optim/loss_scale"] = plan.precision.scaler.get_scale()
    if trainer.optimizers.may_skip:
        row["optim/num_skipped"] = state.num_skipped
    samples = plan.spec.batch_sizes
    num_samples = samples.total(state.num_updates) - samples.total(trainer.pace.logged_at)
    num_updates = state.num_updates - trainer.pace.logged_at
    row["perf/updates_per_second"] = pace = trainer.pace.read(state.num_updates)
    row["perf/samples_per_second"] = pace * (num_samples / num_updates)
    if plan.clock.costs.tokens:
        row["perf/tokens_per_second"] = row["perf/samples_per_second"] * plan.clock.costs.tokens
    if not samples.is_constant:
        row["optim/global_batch_size"] = samples.value(state.num_updates - 1)
    return row


def with_progress(trainer: Trainer, row: Mapping[str, float]) -> dict[str, float]:
    """Put the update, the epoch and the time in front of a row, whose names all files can hold then."""
    num_updates = trainer.state.num_updates
    epoch = trainer.plan.clock.epoch(num_updates)
    metrics = {plain_name(name): value for name, value in row.items()}
    return {"num_updates": num_updates, "epoch": epoch, "time": time.time(), **metrics}


def log_row(trainer: Trainer, row: Mapping[str, float]) -> None:
    """Log a row together with what the hooks have logged since the last one, if there is anything."""
    metrics, media = trainer.log.take()
    if row or metrics or media:
        trainer.logger.log(with_progress(trainer, {**row, **metrics}))
    for log_to in media:
        log_to(trainer.logger)


def log_micro_batch_size(trainer: Trainer) -> None:
    """Warn that results depend on the number of ranks, because it sets the micro-batch size.

    A run that begins on one rank logs nothing: its micro-batches are its batches. Call this after the first update and
    after each change of the micro-batch size.
    """
    plan, spec, state = trainer.plan, trainer.plan.spec, trainer.state
    before, state.micro_batch_size = state.micro_batch_size, spec.micro_batch_size
    if plan.config["micro_batch_size"] is not None or (before is None and spec.world_size == 1):
        return
    last_idx = (spec.num_micro_steps(state.num_updates - 1) - 1) * spec.world_size + spec.rank
    depending = {
        "random layers": seeding.has_drawn(spec.seed, state.num_updates - 1, last_idx, spec.device),
        "batch norm": uses_batch_statistics(trainer.task),
        "mixing": not isinstance(plan.mixing, NoMixing),
    }
    names = ", ".join(name for name, depends in depending.items() if depends)
    if not names or not plan.world.is_rank_zero:
        return
    current = f"computed per micro-batch ({spec.micro_batch_size} samples"
    if before is not None:
        message = "%s: %s, before %d), so other numbers result than on the earlier ranks"
        log.warning(message, names, current, before)
    else:
        message = "%s: %s), whose size depends on the number of ranks, unless micro_batch_size is given"
        log.info(message, names, current)


def log_pictures(trainer: Trainer, *, is_last: bool) -> None:
    """Log what the task draws, and the configured pictures of the latest evaluation."""
    plan = trainer.plan
    pixels = draw(trainer)
    pictures: dict[str, Draw] = {name: partial(draw_pixels, picture) for name, picture in pixels.items()}
    pictures |= trainer.pictures.pictures(plan.world, plan.parallel.all_reduce, is_last=is_last)
    for name, picture in pictures.items():
        trainer.logger.picture(name, picture)


def log_inputs(trainer: Trainer) -> None:
    """Log the first samples of the next update as the model receives them, if pictures are configured."""
    if trainer.pictures.is_on:
        for name, picture in input_pictures(trainer.first_batch(), trainer.plan.data.class_names).items():
            trainer.logger.picture(name, picture)


def log_histograms(trainer: Trainer) -> None:
    """Log histograms of the weights after this update, and of the gradients that it applied."""
    trainer.enter("log")
    plan = trainer.plan
    if plan.parallel.is_sharded or plan.world.is_rank_zero:  # unsharded weights are equal on all ranks
        trainer.logger.histograms(trainer.state.num_updates, histograms(trainer.model))


NUM_BINS = 64


@torch.no_grad()
def histograms(model: nn.Module) -> dict[str, Histogram]:
    """Return `weights/<name>` for every parameter and `gradients/<name>` for those with a gradient.

    With sharded parameters all ranks must call this together; each gets the histograms of the whole tensors.
    """
    counted: dict[str, Histogram] = {}
    for name, parameter in model.named_parameters():
        counted[f"weights/{name}"] = _histogram(parameter)
        if parameter.grad is not None:
            counted[f"gradients/{name}"] = _histogram(parameter.grad)
    return counted


def _histogram(tensor: Tensor) -> Histogram:
    """Count the finite values of a tensor; a complex number as two. As in numpy, the width is 1 if all are equal."""
    whole = full_tensor(tensor)
    values = as_real(whole.coalesce().values() if whole.is_sparse else whole).flatten().float()
    values = values[values.isfinite()]
    low, high = (float(end) for end in values.aminmax()) if len(values) else (0.0, 0.0)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    position = ((values - low) * (NUM_BINS / (high - low))).clamp(0, NUM_BINS - 1)
    counts = position.long().bincount(minlength=NUM_BINS).tolist()
    values = values.double()
    return Histogram(low, high, counts, float(values.sum()), float(values.square().sum()))
