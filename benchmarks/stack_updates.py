"""The updates of a stack and those of one of its runs, for benchmarks that let them take turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.figures import Figure
from benchmarks.statistics import paired
from benchmarks.turns import in_turn
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.extensions.stacked.check import prepare_like
from hydrant.extensions.stacked.stack import Stack
from hydrant.training.costs import synchronize
from hydrant.training.loop import make_update
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.micro_batch import scratch_trainer
from hydrant.training.trainer import Trainer


def lane_configs(words: Sequence[str], num_lanes: int, num_seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the checked configs of runs that differ in the learning rate and in one of some seeds."""
    config = check(compose(["tracker=local", *words]))
    for n in range(num_lanes):
        yield {
            **config,
            "seed": n % num_seeds,
            "optimizer": {**config["optimizer"], "lr": 1e-3 * (1 + n / num_lanes)},
        }


@contextlib.contextmanager
def run_alone(words: Sequence[str]) -> Generator[Trainer]:
    """Yield a run that makes updates by itself."""
    with scratch_trainer(prepare(next(lane_configs(words, 1, 1)))) as alone:
        yield alone


@contextlib.contextmanager
def stack_of(words: Sequence[str], num_lanes: int, num_seeds: int | None = None) -> Generator[Stack]:
    """Yield a stack of runs without folders, of as many seeds as lanes by default."""
    first, *others = lane_configs(words, num_lanes, num_seeds or num_lanes)
    plan = prepare(first)
    plans = [plan, *(prepare_like(config, plan) for config in others)]
    with contextlib.ExitStack() as opened:
        yield Stack([opened.enter_context(scratch_trainer(plan)) for plan in plans])


def seconds_of(update: Callable[[], Any], count: int, device: torch.device) -> Callable[[], float]:
    """Return a function that makes `count` updates and returns the seconds of one."""

    def block() -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            update()
        synchronize(device)
        return (time.perf_counter() - start) / count

    return block


def matrix_products(model: nn.Module, num_lanes: int, batch_size: int) -> Callable[[], None]:
    """Return a function that computes only the matrix products of an update of the linear layers, for all lanes."""
    operands = list[tuple[torch.Tensor, torch.Tensor]]()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(layers):
        device, width, height = layer.weight.device, layer.in_features, layer.out_features
        inputs = torch.randn(num_lanes, batch_size, width, device=device)
        weights = torch.randn(num_lanes, height, width, device=device)
        gradients = torch.randn(num_lanes, batch_size, height, device=device)
        operands += [(inputs, weights.mT), (gradients.mT, inputs)]
        operands += [(gradients, weights)] if number else []  # the data need no gradient

    def multiply() -> None:
        for first, second in operands:
            torch.bmm(first, second)

    return multiply


def compare(
    words: Sequence[str], num_lanes: int, num_seeds: int | None = None, *, num_blocks: int, block_size: int
) -> dict[str, list[float]]:
    """Return the seconds of an update of a stack, of a run alone, and of the stack's matrix products, in turns."""
    with run_alone(words) as alone, stack_of(words, num_lanes, num_seeds) as stack:
        device = alone.plan.world.device
        products = matrix_products(alone.model, num_lanes, alone.plan.spec.micro_batch_size)
        trials = {
            "stack": seconds_of(lambda: stack.update(measure=False), block_size, device),
            "alone": seconds_of(lambda: make_update(alone, measure=False), 8 * block_size, device),
            "products": seconds_of(products, block_size, device),
        }
        for trial in trials.values():  # the first updates make the states and trace the steps
            trial()
        return in_turn(trials, num_blocks)


def ratio(
    what: str, seconds: Mapping[str, Sequence[float]], goal: str | None, *, parts: int = 1, **named: Any
) -> Figure:
    """Return how many updates of a run alone take as long as one of the stack, divided by `parts`."""
    value = paired(seconds["stack"], seconds["alone"], lambda stack, alone: stack / alone / parts)
    return Figure(what, value, "x", goal, **named)
