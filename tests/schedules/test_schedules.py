"""Schedules equal the reference implementation at every update, are exact where parts meet, and check arguments."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import schedule_curves as shared
import timm.scheduler
import torch
import transformers.optimization as transformers
from public_names import public_names
from schedule_curves import BASE, FRAME, References, build, timm_values, torch_values
from torch.optim import Optimizer, lr_scheduler

from hydrant import schedules
from hydrant.errors import ConfigError
from hydrant.optimizers.scheduled_fields import FieldSchedules
from hydrant.schedules import Schedule


def constants(r: random.Random, total: int) -> Any:
    factor, length, warm = r.random(), r.randrange(total), r.randrange(1, total)
    expected = torch_values(lr_scheduler.ConstantLR, total, factor, length)
    yield "constant", {"factor": factor, "length": length}, expected
    plain = torch_values(transformers.get_constant_schedule_with_warmup, total, warm)
    yield "constant", {"factor": 1.0, "length": 0, "warmup": warm}, plain


def lines(r: random.Random, total: int) -> Any:
    start, end, length, warm = r.uniform(0.1, 1), r.random(), r.randrange(1, total + 1), r.randrange(total)
    expected = torch_values(lr_scheduler.LinearLR, total, start, end, length)
    yield "linear", {"start_ratio": start, "end_ratio": end, "length": length}, expected
    expected = torch_values(transformers.get_linear_schedule_with_warmup, total, warm, total)
    yield "linear", {"start_ratio": 1.0, "end_ratio": 0.0, "length": None, "warmup": warm}, expected


def cosines(r: random.Random, total: int) -> Any:
    low, warm, k, cycles = r.random(), r.randrange(1, total), r.uniform(0.5, 2), r.choice([0.5, 1.0, 1.5])
    plain = {"min_ratio": low, "k_decay": 1.0, "num_cycles": 0.5}
    yield ("cosine", plain, torch_values(lr_scheduler.CosineAnnealingLR, total, total, low * BASE))
    with_cycles = torch_values(transformers.get_cosine_schedule_with_warmup, total, warm, total, cycles)
    yield "cosine", plain | {"min_ratio": 0.0, "num_cycles": cycles, "warmup": warm}, with_cycles
    lowest = torch_values(
        transformers.get_cosine_with_min_lr_schedule_with_warmup, total, warm, total, min_lr_rate=low
    )
    yield "cosine", plain | {"warmup": warm}, lowest
    warmed = {"warmup_t": warm, "warmup_lr_init": 0.1 * BASE, "warmup_prefix": True}
    of_k = timm_values(timm.scheduler.CosineLRScheduler, total, total - warm, low * BASE, k_decay=k, **warmed)
    yield "cosine", plain | {"k_decay": k, "warmup": warm, "warmup_init_ratio": 0.1}, of_k


def exponentials(r: random.Random, total: int) -> Any:
    gamma = r.uniform(0.9, 1)
    expected = torch_values(lr_scheduler.ExponentialLR, total, gamma)
    yield "exponential", {"gamma": gamma, "end_ratio": None}, expected
    yield "exponential", {"gamma": None, "end_ratio": gamma**total}, expected


def stable(r: random.Random, total: int) -> Any:
    warm, decay, low = r.randrange(total // 3), r.randrange(1, total // 3), r.random()
    for shape in ("linear", "cosine", "1-sqrt"):
        expected = torch_values(
            lambda o, shape=shape: transformers.get_wsd_schedule(
                o, warm, decay, total, decay_type=shape, min_lr_ratio=low
            ),
            total,
        )
        start = {"warmup": warm, "warmup_init_ratio": low}  # transformers warms up from the floor
        shape_of = {"decay": decay, "decay_shape": shape, "power": 0.5}
        yield "wsd", {**shape_of, "min_ratio": low, **start}, expected


@pytest.mark.parametrize(
    "references", [constants, lines, cosines, exponentials, stable], ids=lambda f: f.__name__
)
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_equals_the_reference_at_every_update(references: References) -> None:
    shared.check_references(references)


@pytest.mark.parametrize("name", shared.plain_names(schedules))
def test_parts_meet_without_a_jump_and_values_depend_on_the_update_alone(name: str) -> None:
    shared.check_schedule(name)


def test_every_schedule_is_tested() -> None:
    hints = {n: getattr(getattr(schedules, n), "__annotations__", ()) for n in public_names(schedules)}
    assert set(shared.plain_names(schedules)) == {name for name, of in hints.items() if "noise_seed" in of}


def test_noise_equals_timm() -> None:
    scheduler = timm.scheduler.CosineLRScheduler(
        shared.sgd(), 50, noise_range_t=(10, 40), noise_pct=0.4, noise_seed=7, t_in_epochs=False
    )
    without_noise = [scheduler._get_values(n, on_epoch=False)[0] for n in range(50)]
    expected = [scheduler._add_noise([value], n)[0] for n, value in enumerate(without_noise)]
    noise = {"noise_ratio": 0.4, "noise_range": [10, 40], "noise_seed": 7}
    values = shared.values_of("cosine", 50, min_ratio=0.0, k_decay=1.0, num_cycles=0.5, **noise)
    assert values == pytest.approx(expected, rel=1e-12)
    assert [n for n in range(50) if abs(values[n] - without_noise[n]) > 1e-9] == list(range(10, 40))


def test_the_powers_of_wsd_equal_their_formula() -> None:
    """Hägele et al., 2024, section 3."""
    for power in (0.5, 1.0, 3.0):
        wsd = build("wsd", 100, decay_shape="power", power=power, min_ratio=0.0)
        assert [wsd(80 + n) for n in range(21)] == pytest.approx([1 - (n / 20) ** power for n in range(21)])
    named = build("wsd", 100, decay_shape="1-sqrt", min_ratio=0.1)
    assert [named(n) for n in range(101)] == [
        build("wsd", 100, decay_shape="power", min_ratio=0.1)(n) for n in range(101)
    ]


def test_a_run_of_warmup_only() -> None:
    all_warm = build("cosine", 10, warmup=10)
    assert [all_warm(n) for n in range(10)] == pytest.approx([0.1 * n for n in range(10)])


def test_cosine_after_a_warmup_ends_with_the_run() -> None:
    """pytorch-accelerated's cosine is cut off by the warmup's length: at update 70 of 100 it jumps from 0.41 to 0."""
    schedule = schedules.cosine(
        shared.clock(100), **FRAME | {"min_ratio": 0.0, "k_decay": 1.0, "num_cycles": 0.5, "warmup": 30}
    )
    assert [schedule(n) for n in (30, 65, 69, 70, 99)] == pytest.approx(
        [0.5 * (1 + math.cos(math.pi * (n - 30) / 70)) for n in (30, 65, 69, 70, 99)], rel=1e-12
    )
    assert schedule(70) > 0.38
    assert 0 < schedule(99) < 1e-3
    assert schedule(100) == pytest.approx(0, abs=1e-15)


def test_a_warmup_from_a_ratio_ends_at_the_full_lr() -> None:
    """pytorch-accelerated uses the slope from an absolute start value: 0.9999991 where 0.91 is right."""
    schedule = build("constant", 20, warmup=10, warmup_init_ratio=0.1)
    assert [schedule(n) for n in (0, 9, 10)] == pytest.approx([0.1, 0.91, 1.0], rel=1e-12)


def test_the_curve_starts_after_the_warmup() -> None:
    """timm without `warmup_prefix` continues with the curve's value at the warmup's length."""
    schedule = build("linear", 100, warmup=50)
    assert (schedule(49), schedule(50)) == pytest.approx((0.98, 1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (shared.building("cosine", 10, warmup=11), "warmup: 11 updates of warmup"),
        (shared.building("cosine", 10, warmup=1, cooldown=10), "cooldown: 10 updates of cooldown"),
        (shared.building("cosine", 10, min_ratio=-1), "min_ratio: needs a number of 0 or more"),
        (shared.building("cosine", 10, noise_range=[5]), "noise_range: needs a list of 2"),
        (shared.building("wsd", 10), "decay: 20 updates of decay"),
        (shared.building("wsd", 99, decay_shape="sqrt"), "did you mean '1-sqrt'"),
        (shared.building("wsd", 99, power=0.0), "power: needs a number above 0"),
        (shared.building("wsd", 99, min_ratio=0.0), "min_ratio: decay_shape=inverse needs a number above 0"),
        (shared.building("exponential", 99, gamma=0.9), "gamma: give either gamma"),
        (shared.building("exponential", 99, end_ratio=0.0), "end_ratio: needs a number above 0"),
    ],
)
def test_arguments_out_of_range_are_refused(make: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_only_a_schedule_is_refused_that_makes_an_lr_negative() -> None:
    def fields(lr: float, ratio: float) -> FieldSchedules:
        optimizer = Optimizer([torch.zeros(1)], {"lr": lr})
        return FieldSchedules({"main": optimizer}, {"main": {"lr": lambda update: ratio}})

    fields(-1.0, 0.5).check(3)  # as in plain PyTorch
    with pytest.raises(ConfigError, match=r"scheduler: returns -0\.5 for update 0"):
        fields(1.0, -0.5).check(3)
