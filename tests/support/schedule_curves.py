"""Schedules at every update, beside the reference implementations and from their defaults; also those of extensions."""

import math
import random
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch

from hydrant import schedules
from hydrant.clock import Clock, Steps
from hydrant.config.instantiate import check_arguments
from hydrant.schedules import Schedule

BASE = 0.3
FRAME: dict[str, Any] = {"warmup": 0, "warmup_init_ratio": 0.0, "cooldown": 0, "noise_ratio": 0.0,
                         "noise_range": ["0%", "100%"], "noise_seed": 0}  # fmt: skip
Optimizer = torch.optim.Optimizer


def clock(total: int) -> Clock:
    return Clock(num_samples=1000, batch_sizes=Steps.constant(10), total_updates=total)


def function(name: str) -> Callable[..., Schedule]:
    """Return the schedule with this name, of the core or of the extension."""
    if hasattr(schedules, name):
        return getattr(schedules, name)
    return getattr(import_module("hydrant.extensions.schedules"), name)


def values_of(name: str, total: int, **arguments: Any) -> list[float]:
    schedule = function(name)(clock(total), **(FRAME | arguments))
    return [BASE * schedule(n) for n in range(total)]


def sgd(momentum: float = 0.0) -> Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE, momentum=momentum)


def torch_values(
    make: Callable[..., Any], total: int, *arguments: Any, field: str = "lr", **named: Any
) -> list[float]:
    """Step one of torch's schedulers and return its value in each of `total` updates; closed form where it has one."""
    optimizer = sgd(momentum=0.9)
    scheduler, values = make(optimizer, *arguments, **named), []
    for _ in range(total):
        closed = getattr(scheduler, "_get_closed_form_lr", None)
        values.append(closed()[0] if closed else optimizer.param_groups[0][field])
        optimizer.step()
        scheduler.step()
    return values


def timm_values(make: Callable[..., Any], total: int, *arguments: Any, **named: Any) -> list[float]:
    scheduler = make(sgd(), *arguments, **named, t_in_epochs=False)
    return [scheduler._get_values(n, on_epoch=False)[0] for n in range(total)]


# Each one yields (Hydrant's option, its arguments, the reference's values) for random arguments and `total` updates.
References = Callable[[random.Random, int], Iterator[tuple[str, dict[str, Any], list[float]]]]


def check_references(references: References) -> None:
    """Check that schedules equal their references at every update."""
    for seed in range(5):
        r = random.Random(seed)
        total = r.randrange(30, 200)
        for name, arguments, expected in references(r, total):
            values = values_of(name, total, **arguments)
            assert values == pytest.approx(expected, rel=1e-12, abs=1e-16), (name, arguments)


def child(name: str, **arguments: Any) -> Callable[[Clock], Schedule]:
    return lambda clock: function(name)(clock, **(FRAME | arguments))


PLAIN: dict[str, dict[str, Any]] = {
    "constant": {"factor": 1.0, "length": 0},
    "linear": {"start_ratio": 1.0, "end_ratio": 0.1, "length": None},
    "cosine": {"min_ratio": 0.1, "k_decay": 1.3, "num_cycles": 0.5},
    "cosine_restarts": {"first_cycle": None, "num_cycles": 2, "cycle_mult": 1.0, "cycle_decay": 1.0, "min_ratio": 0.1},
    "polynomial": {"power": 2.0, "end_ratio": 0.1, "length": None},
    "exponential": {"gamma": None, "end_ratio": 0.1},
    "inverse_sqrt": {"timescale": 30},
    "tanh": {"lb": -7.0, "ub": 3.0, "min_ratio": 0.1},
    "rex": {"min_ratio": 0.1},
    "wsd": {"decay": 20, "decay_shape": "inverse", "power": 0.5, "min_ratio": 0.1},
    "step": {"step_size": 10, "gamma": 0.5},
    "multistep": {"milestones": [10, 20], "gamma": 0.1},
    "one_cycle": {"pct_start": 0.3, "anneal_strategy": "cos", "three_phase": True, "div_factor": 25.0,
                  "final_div_factor": 10.0},
    "one_cycle_momentum": {"pct_start": 0.3, "anneal_strategy": "cos", "three_phase": True, "base_ratio": 0.5},
    "cyclic": {"base_ratio": 0.1, "step_size_up": 5, "step_size_down": None, "mode": "triangular", "gamma": 1.0,
               "is_inverted": False},
    "lambda_": {"fn": lambda n: 0.99**n, "cumulative": True},
    "sequential": {"schedules": {"a": child("constant", factor=0.5, length=3),
                                 "b": child("linear", start_ratio=0.5, end_ratio=0.1, length=None)},
                   "lengths": {"a": 5, "b": None}},
    "product": {"schedules": {"a": child("exponential", gamma=0.99, end_ratio=None)}},
}  # fmt: skip
END_VALUES = {"constant": 1.0, "linear": 0.1, "cosine": 0.1, "cosine_restarts": 0.1, "polynomial": 0.1,
              "exponential": 0.1, "rex": 0.1, "wsd": 0.1, "multistep": 0.01, "one_cycle": 1 / 250,
              "one_cycle_momentum": 1.0, "sequential": 0.1}  # fmt: skip


def plain_names(module: ModuleType) -> list[str]:
    """Return the schedules of a module."""
    return [name for name in PLAIN if hasattr(module, name)]


def build(name: str, total: int, **frame: Any) -> Schedule:
    return function(name)(clock(total), **(FRAME | PLAIN[name] | frame))


def _check_parts(name: str, warmup: object, cooldown: object) -> None:
    """Check that the parts of a schedule meet without a jump, and that its end is exact."""
    total, of_run = 100, clock(100)
    warm, cool = of_run.updates(warmup, "warmup"), of_run.updates(cooldown, "cooldown")
    schedule, curve = (
        build(name, total, warmup=warmup, warmup_init_ratio=0.25, cooldown=cooldown),
        build(name, total - warm - cool),
    )
    first = curve(0)
    rises = [schedule(n + 1) - schedule(n) for n in range(warm)]
    assert rises == pytest.approx([(first - 0.25) / warm for _ in range(warm)])
    assert [schedule(warm + n) for n in range(total - warm - cool)] == pytest.approx(
        [curve(n) for n in range(total - warm - cool)], rel=1e-15
    )
    held = [schedule(n) for n in range(total - cool, total + 1)]
    assert held == pytest.approx([END_VALUES.get(name, curve(total - warm - cool))] * (cool + 1), rel=1e-14)


def check_schedule(name: str) -> None:
    """Check where the parts of a schedule meet, and that values depend on the update alone; in the shortest run too."""
    for warmup, cooldown in [(0, 0), (7, 0), (0, 9), ("10%", "5%"), ("0.2ep", "50sa")]:
        _check_parts(name, warmup, cooldown)
    frame = {"warmup": 5, "cooldown": 5, "noise_ratio": 0.1}
    schedule, other = build(name, 50, **frame), build(name, 50, **frame)
    forwards = [schedule(n) for n in range(50)]
    assert [other(n) for n in reversed(range(50))] == forwards[::-1]
    assert all(math.isfinite(value) for value in forwards)
    if name not in ("wsd", "sequential"):
        assert math.isfinite(build(name, 1)(0))
        assert math.isfinite(build(name, 1)(1))


def building(name: str, total: int, **changed: Any) -> Callable[[], Schedule]:
    def build_checked() -> Schedule:
        arguments = {**FRAME, **PLAIN[name], **changed}
        if "schedules" not in arguments:  # a config has nodes there
            check_arguments(
                "scheduler",
                {"_target_": f"{function(name).__module__}.{name}", "_partial_": True} | arguments,
            )
        return function(name)(clock(total), **arguments)

    return build_checked
