"""The losses and metrics of a task over every sample of a split. Each sample counts once."""

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import Batch, Outcome
from hydrant.tasks.base import eval_mode
from hydrant.tasks.losses import explain_unknown_class
from hydrant.training.distributed.world import Parallel
from hydrant.training.memory import EVALUATION_REMEDY, explain_out_of_memory
from hydrant.training.metrics import Meter, named_values
from hydrant.training.pictures import Observe
from hydrant.training.precision import Precision
from hydrant.training.splits import VAL, Split
from hydrant.training.trainer import Trainer


def evaluate_run(trainer: Trainer) -> dict[str, float]:
    """Evaluate the task as it is now on every validation set, and collect the pictures of the main one."""
    with trainer.optimizers.eval_weights():
        return evaluate_splits(trainer, trainer.plan.validation, {VAL: trainer.pictures.observer()})


def evaluate_splits(
    trainer: Trainer, names: Sequence[str], observers: Mapping[str, Observe | None] = MappingProxyType({})
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
        return with_prefix(prefix, values)

    splits = {name: plan.splits[name] for name in names}
    for name, split in splits.items():
        row |= evaluate_split(split, split.prefix, observers.get(name))
    if plan.averaging.is_on:
        with plan.averaging.swapped_into(task):
            for split in splits.values():
                row |= evaluate_split(split, split.averaged_prefix, None)
    return row


def with_prefix(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return metrics under the names `<prefix>/<metric>`."""
    return {f"{prefix}/{name}": value for name, value in values.items()}


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
    with eval_mode(task):
        for batch_idx, batch, counts in parallel.pad_batches(batches):
            seeding.seed_evaluation(batch_idx, device)
            with precision.autocast():
                outcome = forward(task, precision.cast(batch))
            if not counts:
                continue
            meter.add(outcome.scalars(), outcome.num_targets)
            for metric in metrics.values():
                metric.update(outcome.predictions, batch.targets)
            if observe is not None:
                observe(batch, outcome)
    values = meter.read()
    for name, metric in metrics.items():
        values |= named_values(name, metric.compute(), cast("Any", task).class_names)
        metric.reset()
    return values


def draw(trainer: Trainer) -> dict[str, Tensor]:
    """Return the pictures that the task draws, by name: (3 or 1, H, W) in 0..1, on the host."""
    with eager_evaluation(trainer):
        return {name: picture.float().cpu() for name, picture in cast("Any", trainer.task).pictures().items()}


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
