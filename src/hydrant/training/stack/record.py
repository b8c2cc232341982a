"""What one forward and backward pass of a run alone shows: its random numbers, and the weights without gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Outcome
from hydrant.training.stack.draws import Draw, RecordDraws
from hydrant.training.stack.reasons import CannotStack
from hydrant.training.trainer import Trainer


def draws_of_lanes(lanes: Sequence[Trainer]) -> tuple[list[list[Draw]], set[str]]:
    """Return how each run draws random numbers, in their order, and the weights that no loss depends on.

    Runs with the same model and task draw alike. Of those that draw nothing there is no list.

    Raises:
        CannotStack: they draw numbers in a way that cannot be repeated for each lane, or have sparse gradients.
    """
    first, unused = record_draws(lanes[0])
    if not first:
        return [], unused
    known = {_program(lanes[0]): first}
    for lane in lanes[1:]:
        if _program(lane) not in known:
            known[_program(lane)] = record_draws(lane)[0]
    return [known[_program(lane)] for lane in lanes], unused


def _program(lane: Trainer) -> str:
    return repr((lane.plan.config["model"], lane.plan.config["task"]))


def record_draws(lane: Trainer) -> tuple[list[Draw], set[str]]:
    """Call the task of a run on its next micro-batch; return how it draws random numbers, and the unused weights.

    Weights are named as in the task. They are unused if the loss does not depend on them.

    Raises:
        CannotStack: it draws numbers in a way that cannot be repeated for each lane, or has sparse gradients.
    """
    plan = lane.plan
    host, buffers = seeding.host_state(), [buffer.clone() for buffer in lane.task.buffers()]
    batch = lane.first_batch()
    _seed(lane)
    with RecordDraws() as recorded, plan.precision.autocast(), plan.compilation.force_eager():
        outcome = lane.task(plan.precision.cast(batch))
    after = _device_state(lane)
    unused = _unused_weights(lane, outcome)
    with torch.no_grad():
        for buffer, value in zip(lane.task.buffers(), buffers, strict=True):
            buffer.copy_(value)
    _seed(lane)
    for draw in recorded.draws:
        draw()
    if not torch.equal(after, _device_state(lane)):
        raise CannotStack(f"{_model_name(lane)} draws random numbers that cannot be drawn for each run alone")
    if not seeding.is_host_state(host):
        raise CannotStack(f"{_model_name(lane)} draws random numbers from Python or NumPy")
    return recorded.draws, unused


def _unused_weights(lane: Trainer, outcome: Outcome) -> set[str]:
    named = {name: p for name, p in lane.task.named_parameters() if p.requires_grad}
    # None for a weight that is not used, whatever torch declares.
    gradients: Any = torch.autograd.grad(outcome.total_loss(), list(named.values()), allow_unused=True)
    if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
        raise CannotStack(f"{_model_name(lane)} has sparse gradients")
    return {name for name, gradient in zip(named, gradients, strict=True) if gradient is None}


def _seed(lane: Trainer) -> None:
    plan = lane.plan
    seeding.seed_micro_step(plan.spec.seed, lane.state.num_updates, 0, plan.world.device)


def _device_state(lane: Trainer) -> Tensor:
    device = lane.plan.world.device
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _model_name(lane: Trainer) -> str:
    return type(lane.model).__name__
