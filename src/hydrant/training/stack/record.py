"""The random numbers of all lanes, and the weights without a gradient: both found by a forward pass of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Outcome
from hydrant.training.stack.distinct import distinct
from hydrant.training.stack.draws import Draw, RecordDraws
from hydrant.training.stack.dropout import choose_drawing
from hydrant.training.stack.reasons import CannotStack
from hydrant.training.trainer import Trainer


class StackedDraws:
    """Draws the random numbers of all lanes. Each lane draws what its run alone would.

    Args:
        lanes: runs of the same program.

    Raises:
        CannotStack: they draw numbers in a way that cannot be repeated for each lane, or have sparse gradients.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        device = lanes[0].plan.world.device
        first, self.unused = record_draws(lanes[0])
        """The names of the weights that no loss depends on."""
        programs = [_program(lane) for lane in lanes] if first else []
        by_program = {program: first for program in programs[:1]}
        for lane, program in zip(lanes, programs, strict=False):
            if program not in by_program:
                by_program[program] = record_draws(lane)[0]
        if any(_kinds(draws) != _kinds(first) for draws in by_program.values()):
            raise CannotStack("the runs draw random numbers of different shapes or types")
        # Lanes with the same seed and program share one source. `places` has the source of each lane.
        keys = [(lane.plan.spec.seed, program) for lane, program in zip(lanes, programs, strict=False)]
        first_lanes, places = distinct(keys)
        sources = [(keys[n][0], by_program[keys[n][1]]) for n in first_lanes]
        self._places = torch.tensor(places, device=device) if len(first_lanes) < len(keys) else None
        self._drawing = choose_drawing(sources, device)

    def draw(self, num_updates: int, micro_step: int) -> list[Tensor]:
        """Return the random numbers of a micro-batch, (lanes, ...) each, in the order in which the task uses them."""
        drawn = self._drawing.draw(num_updates, micro_step)
        return drawn if self._places is None else [rows[self._places.to(rows.device)] for rows in drawn]


def _kinds(draws: Sequence[Draw]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(draw.like.shape, draw.like.dtype, draw.device) for draw in draws]


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
        draw.fill(draw.empty())
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
