"""Which runs can train as lanes of one stack: checked on their plans, then by training two of them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hydrant.batch import as_real
from hydrant.data import IterableSource, LoaderSource
from hydrant.schedules import Plateau
from hydrant.training.compile.base import Eager
from hydrant.training.loop import make_update
from hydrant.training.plan import Plan
from hydrant.training.prepare.scratch import build_scratch
from hydrant.training.stack.fields import flat_numbers
from hydrant.training.stack.forward import plain_attributes
from hydrant.training.stack.hidden import HiddenContents, check_hidden
from hydrant.training.stack.optimizer import ELEMENTWISE
from hydrant.training.stack.reasons import CannotStack
from hydrant.training.stack.stack import Stack
from hydrant.training.stack.tensors import named_tensors
from hydrant.training.trainer import Trainer

_NUM_TRIED = 3  # updates: the first makes the states of the optimizers, the second traces their steps
_LOSS_TOLERANCE, _ROUNDED_LOSS_TOLERANCE = 1e-3, 3e-2
"""The largest relative difference between the stacked loss and the loss of the run alone; the second one if the forward
pass is rounded to bfloat16. Another random number or a wrong batch changes the loss by more."""
_CHANGE_TOLERANCE = 0.5
"""The largest difference between the changes of all weights, stacked and alone, relative to the change. Some optimizers
amplify rounding: an update by the sign of a gradient near 0 may have the other sign."""


_WITHOUT_STATE = ("hydrant.hooks.StopIf",)
"""Hooks that look at the evaluations of the run that they are called with, and at nothing else."""


def check_plan(plan: Plan) -> None:
    """Check that a run may be a lane of a stack.

    Raises:
        CannotStack: it may not; the message says why, with the key.
    """
    config, train = plan.config, plan.data.train
    if config["parallel"]["num_processes"] > 1 or plan.world.world_size > 1:
        raise CannotStack("it has several ranks (parallel.num_processes)")
    if plan.precision.scales_loss:
        raise CannotStack("its loss scale depends on its gradients (precision)")
    if plan.optimizers.retains_graph:
        raise CannotStack("its optimizers follow single losses (optimizers.*.losses)")
    if plan.optimizers.uses_closure:
        raise CannotStack("its optimizer evaluates the loss itself (optimizer)")
    if plan.profiler.is_on:
        raise CannotStack("it is profiled (profiler)")
    if plan.compilation.is_on:
        _check_compilation(config["compile"])
    if any(hook["_target_"] not in _WITHOUT_STATE for hook in (config["hooks"] or {}).values()):
        raise CannotStack("its hooks may change anything (hooks; stop_if is allowed)")
    if config["micro_batch_size"] == "auto":
        raise CannotStack("it searches its micro-batch size (micro_batch_size=auto)")
    if plan.clock.unmeasured_sizes or plan.clock.update_seconds.measured:
        raise CannotStack("one of its durations is in seconds (duration, scheduler.warmup)")
    if isinstance(train, IterableSource):
        raise CannotStack("its data are a stream (data)")
    sources = (train, *(split.source for split in plan.splits.values()))
    if any(isinstance(source, LoaderSource) and source.num_workers for source in sources):
        raise CannotStack("worker processes read its data (data.num_workers=0 lets it be stacked)")


def _check_compilation(settings: Mapping[str, Any]) -> None:
    if settings["scope"] != "task":
        raise CannotStack("only a part of it is compiled (compile.scope=task lets it be stacked)")
    if settings["optimizer"] or settings["evaluation"]:
        raise CannotStack(
            "its optimizer or its evaluation is compiled (compile.optimizer, compile.evaluation)"
        )
    if settings["mode"] in ("reduce-overhead", "max-autotune"):
        raise CannotStack("it uses CUDA graphs (compile.mode)")


def signature(plan: Plan) -> Hashable:
    """Return what is equal for all runs of the same program: everything except seeds, fractions and schedules.

    Fractions may differ only where each lane can have its own: not inside of a partial, for example.
    """
    entries, hidden = plan.optimizers.entries, HiddenContents(plan.task)
    return (
        tuple(_module_signature(module, hidden) for module in plan.task.modules()),
        tuple(
            (name, each.shape, each.dtype, each.requires_grad)
            for name, each in named_tensors(plan.task).items()
        ),
        tuple((name, *_optimizer_signature(entry.optimizer, hidden)) for name, entry in entries.items()),
        tuple(
            (e.clipping.max_norm is None, e.clipping.max_value is None, e.clipping.agc)
            for e in entries.values()
        ),
        tuple(plan.optimizers.schedules.fields),
        type(plan.averaging),
        plan.clock.total_updates,
    )


def has_plateau(plan: Plan) -> bool:
    """Return whether a schedule of a run waits for a metric."""
    return any(isinstance(s, Plateau) for fields in plan.schedules.values() for s in fields.values())


def try_lanes(plans: Sequence[Plan]) -> int:
    """Train two runs together for some updates, and alone; return the bytes that a lane needs.

    The plans are used up: `plans` has two runs twice, first those to stack, then the same alone.

    Raises:
        CannotStack: they cannot be trained together, or are trained otherwise than alone.
    """
    check_hidden([plan.task for plan in plans])
    with plans[0].world.process_group(), _trainers(plans) as trainers:
        half = len(trainers) // 2
        stacked, alone = trainers[:half], trainers[half:]
        stack = Stack(stacked)
        size = stack.bytes_per_lane()
        before = [_flat(trainer) for trainer in trainers]
        for _ in range(min(_NUM_TRIED, plans[0].clock.total_updates)):
            stack.update(measure=True)
            for trainer in alone:
                make_update(trainer, measure=True)
        stack.sync()
        changes = [_flat(trainer) - start for trainer, start in zip(trainers, before, strict=True)]
        for n, (one, other) in enumerate(zip(stacked, alone, strict=True)):
            _compare_losses(one, other)
            distance, size_of_change = (changes[n] - changes[half + n]).norm(), changes[half + n].norm()
            if not bool(distance <= _CHANGE_TOLERANCE * size_of_change):
                raise CannotStack(f"{type(other.model).__name__} is not changed as it is alone")
    return size


def _compare_losses(stacked: Trainer, alone: Trainer) -> None:
    one, other = (trainer.meter.read()["loss"] for trainer in (stacked, alone))
    is_rounded = alone.plan.precision.is_reduced
    tolerance = _ROUNDED_LOSS_TOLERANCE if is_rounded else _LOSS_TOLERANCE
    if not abs(one - other) <= tolerance * max(abs(other), 1e-3):  # also if one is NaN
        message = f"its loss would be {one:.6g} instead of {other:.6g} after {_NUM_TRIED} updates"
        raise CannotStack(f"{type(alone.model).__name__} does not train as it does alone: {message}")


@torch.no_grad()
def _flat(trainer: Trainer) -> Tensor:
    """Return all weights and buffers of a run in a line, float64."""
    return torch.cat(
        [as_real(tensor).reshape(-1).double() for tensor in named_tensors(trainer.task).values()]
    )


@contextmanager
def _trainers(plans: Sequence[Plan]) -> Generator[list[Trainer]]:
    with ExitStack() as stack:
        trainers = list[Trainer]()
        for plan in plans:
            eager = dataclasses.replace(plan, compilation=Eager(plan.world))  # compiled when the stack begins
            trainers.append(build_scratch(eager))
            stack.callback(trainers[-1].close)
        yield trainers


def _module_signature(module: nn.Module, hidden: HiddenContents) -> Hashable:
    """Return the class and the content of a module, but for a fraction of its own only whether it is 0."""
    plain = sorted(plain_attributes(module).items())
    own = tuple((k, type(v), not v if type(v) is float else v) for k, v in plain)
    return type(module), own, tuple(hidden.of(module).items())


def _optimizer_signature(optimizer: torch.optim.Optimizer, hidden: HiddenContents) -> tuple[Hashable, ...]:
    groups = list[Hashable]()
    for group in optimizer.param_groups:
        # These optimizers run the same code for a weight decay of 0. Another number that is 0 may switch something off.
        free = {"weight_decay"} if type(optimizer) in ELEMENTWISE else set[str]()
        fractions = {n: not value and n not in free for n, value in flat_numbers(group).items()}
        others = flat_numbers(group, kinds=(int, bool, str, type(None)))
        groups.append((len(group["params"]), tuple(sorted(fractions.items())), repr(sorted(others.items()))))
    return type(optimizer), tuple(groups), tuple(hidden.of(optimizer).items())
