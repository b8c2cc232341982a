"""Schedules: equal to the living reference at every update, exact at the joints, refused when they do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from hydrant import schedules
from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.schedules import Schedule

PLAIN: dict[str, Any] = {"warmup": 0, "warmup_init_ratio": 0.0, "cooldown": 0}
CURVES: dict[str, Callable[..., Schedule]] = {
    "constant": schedules.constant,
    "linear": lambda clock, **k: schedules.linear(clock, end_ratio=0.1, **k),
    "cosine": lambda clock, **k: schedules.cosine(clock, min_ratio=0.1, **k),
    "step": lambda clock, **k: schedules.step(clock, step_size=10, gamma=0.5, **k),
    "wsd": lambda clock, **k: schedules.wsd(clock, decay=20, decay_shape="1-sqrt", min_ratio=0.1, **k),
}
ENDS = {"constant": 1.0, "linear": 0.1, "cosine": 0.1, "step": 0.5**5, "wsd": 0.1}


def clock(total: int) -> Clock:
    return Clock(num_samples=1000, global_batch_size=10, total_updates=total)


def values_of(scheduler: Callable[[torch.optim.Optimizer], Any], total: int) -> list[float]:
    """The lr that a torch scheduler gives each of `total` updates."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    stepping, values = scheduler(optimizer), []
    for _ in range(total):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        stepping.step()
    return values


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (CURVES["constant"], lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        (CURVES["linear"], lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=50)),
        (CURVES["cosine"], lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=50, eta_min=0.03)),
        (CURVES["step"], lambda o: lr_scheduler.StepLR(o, step_size=10, gamma=0.5)),
    ],
    ids=["constant", "linear", "cosine", "step"],
)
def test_equals_torch_at_every_update(ours: Callable[..., Schedule], theirs: Callable[..., Any]) -> None:
    schedule = ours(clock(50), **PLAIN)
    assert [0.3 * schedule(n) for n in range(50)] == pytest.approx(values_of(theirs, 50), rel=1e-12)


@pytest.mark.parametrize("shape", ["linear", "cosine", "1-sqrt"])
def test_wsd_is_its_formula(shape: str) -> None:
    """transformers' get_wsd_schedule: warmup, then 1, then the decay over its own length."""
    schedule = schedules.wsd(
        clock(100), decay=40, decay_shape=shape, min_ratio=0.0, warmup=10, warmup_init_ratio=0.0, cooldown=0
    )
    falls = {
        "linear": lambda t: 1 - t,
        "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t)),
        "1-sqrt": lambda t: 1 - math.sqrt(t),
    }
    expected = [n / 10 for n in range(10)] + [1.0] * 50 + [falls[shape](n / 40) for n in range(40)]
    assert [schedule(n) for n in range(100)] == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize(("warmup", "cooldown"), [(0, 0), (7, 0), (0, 9), ("10%", "5%"), ("0.2ep", "50sa")])
def test_joints_are_continuous_and_the_end_is_exact(name: str, warmup: object, cooldown: object) -> None:
    total, times = 100, clock(100)
    warm, cool = times.updates(warmup, "warmup"), times.updates(cooldown, "cooldown")
    length = total - warm - cool
    schedule = CURVES[name](times, warmup=warmup, warmup_init_ratio=0.25, cooldown=cooldown)
    assert schedule(warm) == 1.0
    if warm:
        assert schedule(0) == 0.25
        rises = [schedule(n + 1) - schedule(n) for n in range(warm)]
        assert rises == pytest.approx([0.75 / warm] * warm)
    end = 0.5 ** (length // 10) if name == "step" else ENDS[name]
    assert [schedule(n) for n in range(total - cool, total + 1)] == pytest.approx(
        [end] * (cool + 1), rel=1e-15
    )


@pytest.mark.parametrize("name", CURVES)
def test_is_a_function_of_the_update_alone(name: str) -> None:
    schedule = CURVES[name](clock(50), warmup=5, warmup_init_ratio=0.0, cooldown=5)
    forwards = [schedule(n) for n in range(50)]
    assert [schedule(n) for n in reversed(range(50))] == forwards[::-1]


def test_horizon_edges() -> None:
    for name, make in CURVES.items():
        if name != "wsd":
            assert make(clock(1), **PLAIN)(0) == 1.0
    all_warm = schedules.cosine(clock(10), min_ratio=0.0, warmup=10, warmup_init_ratio=0.0, cooldown=0)
    assert [all_warm(n) for n in range(10)] == pytest.approx([0.1 * n for n in range(10)])


def refused(name: str, total: int, **changed: Any) -> Callable[[], Schedule]:
    return lambda: CURVES[name](clock(total), **(PLAIN | changed))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (refused("cosine", 10, warmup=11), "warmup: 11 updates of warmup"),
        (refused("cosine", 10, warmup=1, cooldown=10), "cooldown: 10 updates of cooldown"),
        (refused("wsd", 10), "decay: 20 updates of decay"),
        (lambda: schedules.step(clock(10), step_size=0, gamma=0.1, **PLAIN), "step_size: 0 is less than one"),
        (
            lambda: schedules.wsd(clock(9), decay=1, decay_shape="sqrt", min_ratio=0.0, **PLAIN),
            "did you mean '1-sqrt'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
