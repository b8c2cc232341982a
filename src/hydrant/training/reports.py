"""What a run logs while it trains: rows of metrics, pictures and histograms."""

import math
import time
from collections.abc import Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import as_real
from hydrant.data import StreamSpec
from hydrant.data.augment import NoMixing
from hydrant.errors import log
from hydrant.optimizers.clipping import is_sharded
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
    mixes = not isinstance(plan.mixing, NoMixing)
    last_idx = (spec.num_micro_steps(state.num_updates - 1) - 1) * spec.world_size + spec.rank
    depending = {
        "random layers": seeding.has_drawn(spec.seed, state.num_updates - 1, last_idx, spec.device),
        "batch norm": uses_batch_statistics(trainer.task),
        "mixing": mixes,
    }
    names = ", ".join(name for name, depends in depending.items() if depends)
    if not names or not plan.world.is_rank_zero:
        return
    size, current = shared_size(spec, only_even=mixes), f"{spec.micro_batch_size} samples"
    if before is not None:
        message = (
            "%s: computed per micro-batch (%s, before %d), so other numbers result than on the earlier ranks"
        )
        log.warning(message, names, current, before)
        return
    remedy = ""
    if size is not None:
        ranks = f"1 and {math.gcd(*spec.batch_sizes.values) // size} ranks"
        remedy = f"; micro_batch_size={size} gives the same numbers on {ranks}"
    message = "%s: computed per micro-batch (%s), whose size depends on the number of ranks%s"
    log.info(message, names, current, remedy)


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


def shared_size(spec: StreamSpec, *, only_even: bool) -> int | None:
    """Return the largest micro-batch size, above 1, that one rank and several can use; None if there is none."""
    num_ranks = math.gcd(*spec.batch_sizes.values) // spec.micro_batch_size
    largest = spec.micro_batch_size if num_ranks > 1 else spec.micro_batch_size // 2
    sizes = (n for n in range(largest, 1, -1) if spec.micro_batch_size % n == 0 and not (only_even and n % 2))
    return next(sizes, None)


NUM_BINS = 64


@torch.no_grad()
def histograms(model: nn.Module) -> dict[str, Histogram]:
    """Return `weights/<name>` for every parameter and `gradients/<name>` for those with a gradient.

    With sharded parameters all ranks must call this together; each gets the histograms of the whole tensors.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"weights/{name}"] = parameter.detach()
        if parameter.grad is not None:
            tensors[f"gradients/{name}"] = parameter.grad
    if not tensors:
        return {}
    has_shards = any(is_sharded(tensor) for tensor in tensors.values())
    values = [_local_values(tensor) for tensor in tensors.values()]
    extremes = torch.stack([_extremes(local) for local in values])  # (tensors, 2)
    if has_shards:
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    bounds = _bounds(extremes)
    counts = torch.stack([_count(local, bound) for local, bound in zip(values, bounds, strict=True)])
    if has_shards:
        dist.all_reduce(counts)
    rows: list[list[float]] = torch.cat([bounds, counts], dim=1).tolist()  # the one transfer
    return {
        key: _histogram(row, _num_copies(tensor) if has_shards else 1)
        for (key, tensor), row in zip(tensors.items(), rows, strict=True)
    }


def _local_values(tensor: Tensor) -> Tensor:
    """Return this rank's values of a tensor as flat float32; a complex number as two."""
    local = tensor.to_local() if is_sharded(tensor) else tensor
    return as_real(local.coalesce().values() if local.is_sparse else local).reshape(-1).float()


def _extremes(values: Tensor) -> Tensor:
    """Return (-minimum, maximum) of the finite values, (2,) float64; -inf twice if there are none."""
    if not values.numel():
        return values.new_full((2,), -math.inf, dtype=torch.float64)
    is_finite = values.isfinite()
    return torch.stack([torch.where(is_finite, sign * values, -math.inf).amax() for sign in (-1, 1)]).double()


def _bounds(extremes: Tensor) -> Tensor:
    """Return the range of each tensor's bins, (tensors, 2). As in numpy, its width is 1 if all values are equal."""
    low, high = -extremes[:, 0], extremes[:, 1]
    is_empty = low > high
    low, high = (end.masked_fill(is_empty, 0) for end in (low, high))
    margin = 0.5 * (low == high)
    return torch.stack([low - margin, high + margin], dim=1)


def _count(values: Tensor, bounds: Tensor) -> Tensor:
    """Return the bin counts, the sum and the sum of squares of the finite values, (NUM_BINS + 2,) float64."""
    is_finite = values.isfinite()
    low, high = bounds.float()
    position = ((values - low) * (NUM_BINS / (high - low))).nan_to_num(0).clamp_(0, NUM_BINS - 1)
    counts = torch.zeros(NUM_BINS, dtype=torch.int64, device=values.device)
    counts.scatter_add_(0, position.long(), is_finite.long())  # torch.bincount would wait for the device
    finite = values.masked_fill(~is_finite, 0)
    sums = [finite.sum(dtype=torch.float64), finite.square().sum(dtype=torch.float64)]
    return torch.cat([counts.double(), torch.stack(sums)])


def _num_copies(tensor: Tensor) -> int:
    """Return how many ranks hold the same values of a tensor."""
    if not is_sharded(tensor):
        return dist.get_world_size()
    mesh, placements = tensor.device_mesh, tensor.placements
    return math.prod(mesh.size(n) for n, placement in enumerate(placements) if placement.is_replicate())


def _histogram(row: list[float], num_copies: int) -> Histogram:
    low, high, *counts, total, squares = row
    counts = [round(count / num_copies) for count in counts]
    return Histogram(low, high, counts, total / num_copies, squares / num_copies)
