"""What a run measures and logs while it trains: rows of metrics, evaluations, pictures and histograms.

NaN or infinity end it on all ranks before they save. In an evaluation, each sample of a split counts once.
"""

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import Batch, Outcome, as_real, is_inexact, tensors_of
from hydrant.data import InMemorySource, LoaderSource, PositionedStream
from hydrant.data.base import SampleOrder
from hydrant.data.splits import VAL, Split
from hydrant.errors import HydrantError, NonFiniteError, first_few, log
from hydrant.optimizers.kernels import full_tensor, total_norm
from hydrant.tasks.base import eval_mode, explain_unknown_class
from hydrant.trackers import Histogram
from hydrant.training.costs import EVALUATION_REMEDY, explain_out_of_memory
from hydrant.training.distributed.ddp import uses_batch_statistics
from hydrant.training.distributed.world import Parallel, World
from hydrant.training.hooks import draw_pixels
from hydrant.training.metrics import Meter, named_values, plain_name
from hydrant.training.precision import Precision
from hydrant.training.trainer import Trainer


def training_row(trainer: Trainer, grad_norms: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the means since the last log point, the values of the schedules and the pace.

    Raises:
        NonFiniteError: a mean or a gradient norm is NaN or infinite.
    """
    plan, state, schedules = trainer.plan, trainer.state, trainer.optimizers.schedules
    measured = {f"optim/{name}": norm for name, norm in grad_norms.items()}
    means = [meter.read(measured) for meter in trainer.meters.values()]
    row = {k if "/" in k else f"train/{k}": v for turn in means for k, v in turn.items()}
    # A loss that several turns return counts once; without a turn of each there is no sum.
    if len(means) > 1 and row:
        names = [name if "/" in name else f"train/{name}" for name in trainer.losses]
        losses = [row[name] for name in names] if all(means) and row.keys() >= {*names} else []
        del row["train/loss"]  # that of one turn
        row |= {"train/loss": sum(losses)} if losses else {}
    for name, value in row.items():
        if not math.isfinite(value):
            is_here = plan.world.all_gather(trainer.first_non_finite() is not None)
            end_non_finite(trainer, name, is_here)
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
        "mixing": bool(plan.mixing),
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


def follow_evaluation(trainer: Trainer, row: Mapping[str, float]) -> None:
    """Log what the task draws of an evaluation whose row is logged, and pass the row to hooks and listeners."""
    with eager_evaluation(trainer):
        pixels: Mapping[str, Tensor] = cast("Any", trainer.task).pictures()
        pictures = {name: partial(draw_pixels, picture.float().cpu()) for name, picture in pixels.items()}
    for name, picture in pictures.items():
        trainer.logger.picture(name, picture)
    trainer.plan.hooks.call("after_evaluation", trainer, row)
    log_row(trainer, {})  # what they have logged


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


_MAX_UPDATES = 100  # that are read again


def check_finite(trainer: Trainer) -> None:
    """Check, before a checkpoint is saved, what it will hold. Synchronises with the device; all ranks call it.

    Raises:
        NonFiniteError: a metric, a weight or a buffer is NaN or infinite on some rank; raised on all ranks.
    """
    metric = trainer.first_non_finite()
    problems = [
        f"train/{metric}" if metric is not None else None,
        _find_non_finite(trainer.task, trainer.task.state_dict()),
        _find_non_finite(trainer.model, trainer.plan.averaging.state_dict()),
    ]
    per_rank = trainer.plan.world.all_gather(next(filter(None, problems), None))
    first = next(filter(None, per_rank), None)
    if first is not None:
        end_non_finite(trainer, first, [problem is not None for problem in per_rank])


def _find_non_finite(module: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    """Return what kind of tensor in a module's state is not finite. What is not trained may hold infinity: a mask."""
    trained = {n for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    floats = {name: value for name, value in state.items() if is_inexact(value)}
    has_nan = [value.isnan().any() for name, value in floats.items() if name not in trained]
    if not total_norm([value for name, value in floats.items() if name in trained]).isfinite():
        return "a parameter"
    return "a buffer or a frozen weight" if has_nan and bool(torch.stack(has_nan).any()) else None


def end_non_finite(trainer: Trainer, name: str, is_here: Sequence[bool]) -> NoReturn:
    """Raise NonFiniteError on all ranks. `is_here` has a flag per rank; if only some are set, it names those."""
    ranks = [str(rank) for rank, here in enumerate(is_here) if here]
    where = "" if len(ranks) in (0, len(is_here)) else f" on rank {', '.join(ranks)}"
    cause = trainer.plan.world.first(_in_samples(trainer))
    raise NonFiniteError(name, trainer.pace.logged_at, trainer.state.num_updates, where, cause)


def _in_samples(trainer: Trainer) -> str | None:
    """Read the samples since the last log point again, and return the first one with NaN or infinity, if any.

    A stream whose position is saved cannot be read again.
    """
    if isinstance(trainer.stream, PositionedStream):
        return None
    last = trainer.state.num_updates
    try:
        for num_updates in range(max(trainer.pace.logged_at, last - _MAX_UPDATES), last):
            positions = trainer.plan.spec.positions(num_updates)
            batches = trainer.stream.micro_batches(num_updates)
            for position, batch in zip(positions, batches, strict=True):
                for part, tree in zip(("inputs", "targets"), batch, strict=True):
                    floats = [t for t in tensors_of(tree) if is_inexact(t) and t.ndim]
                    rows = [(~t.isfinite()).unsqueeze(-1).flatten(1).any(1) for t in floats]
                    wrong = next((of_tensor for of_tensor in rows if of_tensor.any()), None)
                    if wrong is not None:
                        sample = _name(trainer, position + int(wrong.int().argmax()))
                        fault = f"The {part} of {sample}, of update {num_updates + 1}, hold NaN or infinity"
                        return f"{fault}: correct the data, or leave this sample out"
    except HydrantError as error:  # what became NaN is the error to show
        log.warning("the samples cannot be read again: %s", error)
    return None


def _name(trainer: Trainer, position: int) -> str:
    """Return the name of the training sample at a place of the stream."""
    source, seed = trainer.plan.data.train, trainer.plan.spec.seed
    if not isinstance(source, InMemorySource | LoaderSource):  # which shuffle alike
        return f"the sample at place {position:,} of the stream"
    draw = SampleOrder(seed, source.num_samples, torch.device("cpu")).draws(position, 1)
    index = int(draw) % source.num_samples
    return source.name_of(index) if isinstance(source, LoaderSource) else f"training sample {index}"


def evaluate_run(trainer: Trainer) -> dict[str, float]:
    """Evaluate the task as it is now on every validation set. Hooks and listeners see the batches of the main one."""
    hooks, event = trainer.plan.hooks, "on_evaluation_batch"
    observers = {VAL: partial(hooks.call, event, trainer)} if hooks.listens(event) else {}
    with trainer.optimizers.eval_weights():
        return evaluate_splits(trainer, trainer.plan.validation, observers)


Observe = Callable[[Batch, Outcome], None]
"""Receives every batch of an evaluation."""


def evaluate_splits(
    trainer: Trainer, names: Sequence[str], observers: Mapping[str, Observe] = MappingProxyType({})
) -> dict[str, float]:
    """Evaluate splits with the weights that the task holds and, if weights are averaged, with the average too.

    The metrics of the average are `val_ema/...` instead of `val/...`.

    Args:
        trainer: the run.
        names: of the splits.
        observers: receive every batch of a split and its outcome, by its name.
    """
    plan, task, row = trainer.plan, trainer.task, dict[str, float]()

    def evaluate_split(split: Split, prefix: str, observe: Observe | None) -> dict[str, float]:
        forward = plan.compilation.forward_eval
        with contextlib.closing(trainer.watchdog.track(trainer.evaluation_batches(split))) as batches:
            values = evaluate(task, batches, plan.precision, plan.parallel, forward, observe)
        return {f"{prefix}/{name}": value for name, value in values.items()}

    splits = {name: plan.splits[name] for name in names}
    for name, split in splits.items():
        row |= evaluate_split(split, split.prefix, observers.get(name))
    if plan.averaging.is_on:
        with plan.averaging.swapped_into(task):
            for split in splits.values():
                row |= evaluate_split(split, split.averaged_prefix, None)
    return _of_rank_zero(plan.world, row) if cast("Any", task).metrics else row


def _of_rank_zero(world: World, row: dict[str, float]) -> dict[str, float]:
    """Return the row of rank 0, so that all ranks decide alike, also by a metric that knows the samples of one rank."""
    rows = world.all_gather(row)
    values = [
        (name, value, of_rank.get(name, math.nan)) for of_rank in rows for name, value in rows[0].items()
    ]
    far = [name for name, a, b in values if not (math.isclose(a, b, rel_tol=1e-4) or math.isnan(a))]
    if far and world.is_rank_zero:
        message = "%s: each rank has another value; rank 0's counts: let `compute` combine the ranks"
        _warn_once(message, first_few([*dict.fromkeys(far)]))
    return rows[0]


_warn_once = cache(log.warning)


@torch.no_grad()
@explain_out_of_memory(EVALUATION_REMEDY)
@explain_unknown_class()
def evaluate(
    task: nn.Module,
    batches: Iterable[Batch],
    precision: Precision,
    parallel: Parallel,
    forward: Callable[[nn.Module, Batch], Outcome],
    observe: Observe | None = None,
) -> dict[str, float]:
    """Return the means over `batches` and the task's own metrics.

    The random numbers that a task draws are the same in every evaluation.

    Args:
        task: the unwrapped task; it is in evaluation mode during the call.
        batches: those of this rank.
        precision: autocasts the forward pass.
        parallel: reduces the sums over the ranks.
        forward: returns the task's outcome for a batch, eager or compiled.
        observe: receives every batch and its outcome.

    Raises:
        ConfigError: a sample has a class that the model does not have.
        OutOfMemory: the memory of the device is full.
    """
    device = parallel.device  # not that of the weights: sharded ones may be kept on the host
    meter = Meter(device, parallel.all_reduce)
    metrics: dict[str, Any] = dict(cast("nn.ModuleDict", task.metrics).items())
    for metric in metrics.values():
        metric.reset()
    with eval_mode(task):
        for batch_idx, batch, counts in parallel.pad_batches(batches):
            seeding.seed_evaluation(batch_idx, device)
            with precision.autocast():
                outcome = forward(task, precision.cast(batch))
            if not counts:
                continue
            if scalars := outcome.scalars():
                meter.add(scalars, outcome.num_targets)
            for metric in metrics.values():
                metric.update(outcome.predictions, batch.targets)
            if observe is not None:
                observe(batch, outcome)
    values = meter.read()
    for name, metric in metrics.items():
        values |= named_values(name, metric.compute(), cast("Any", task).class_names)
        metric.reset()
    return values


@contextlib.contextmanager
def eager_evaluation(trainer: Trainer) -> Generator[None]:
    """Set up calls of the model as in an evaluation, but never compiled: another use of it would compile it again."""
    plan = trainer.plan
    with (
        trainer.optimizers.eval_weights(),
        eval_mode(trainer.task),
        plan.compilation.force_eager(),
        plan.precision.autocast(),
        torch.no_grad(),
    ):
        yield
