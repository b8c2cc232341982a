"""Schedules equal the reference implementation at every update, are exact where parts meet, and check arguments."""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import timm.scheduler
import torch
import transformers.optimization as transformers
from public_names import public_names
from torch.optim import lr_scheduler

from hydrant import schedules
from hydrant.clock import Clock, Steps
from hydrant.config.instantiate import check_arguments
from hydrant.errors import ConfigError
from hydrant.schedules import Schedule

BASE = 0.3
FRAME: dict[str, Any] = {"warmup": 0, "warmup_init_ratio": 0.0, "cooldown": 0, "noise_ratio": 0.0,
                         "noise_range": ["0%", "100%"], "noise_seed": 0}  # fmt: skip
Make = Callable[..., Schedule]
Optimizer = torch.optim.Optimizer


def clock(total: int) -> Clock:
    return Clock(num_samples=1000, batch_sizes=Steps.constant(10), total_updates=total)


def values_of(name: str, total: int, **arguments: Any) -> list[float]:
    schedule = getattr(schedules, name)(clock(total), **(FRAME | arguments))
    return [BASE * schedule(n) for n in range(total)]


def sgd(momentum: float = 0.0) -> Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE, momentum=momentum)


def torch_values(make: Callable[[Optimizer], Any], total: int, field: str = "lr") -> list[float]:
    """Step one of torch's schedulers and return its value in each of `total` updates; closed form where it has one."""
    optimizer = sgd(momentum=0.9)
    scheduler, values = make(optimizer), []
    for _ in range(total):
        closed = getattr(scheduler, "_get_closed_form_lr", None)
        values.append(closed()[0] if closed else optimizer.param_groups[0][field])
        optimizer.step()
        scheduler.step()
    return values


def timm_values(make: Callable[[Optimizer], Any], total: int) -> list[float]:
    scheduler = make(sgd())
    return [scheduler._get_values(n, on_epoch=False)[0] for n in range(total)]


# Each one yields (Hydrant's option, its arguments, the reference's values) for random arguments and `total` updates.
References = Callable[[random.Random, int], Iterator[tuple[str, dict[str, Any], list[float]]]]


def constants(r: random.Random, total: int) -> Any:
    factor, length, warm = r.random(), r.randrange(total), r.randrange(1, total)
    expected = torch_values(lambda o: lr_scheduler.ConstantLR(o, factor, length), total)
    yield "constant", {"factor": factor, "length": length}, expected
    plain = torch_values(lambda o: transformers.get_constant_schedule_with_warmup(o, warm), total)
    yield "constant", {"factor": 1.0, "length": 0, "warmup": warm}, plain


def lines(r: random.Random, total: int) -> Any:
    start, end, length, warm = r.uniform(0.1, 1), r.random(), r.randrange(1, total + 1), r.randrange(total)
    expected = torch_values(lambda o: lr_scheduler.LinearLR(o, start, end, length), total)
    yield "linear", {"start_ratio": start, "end_ratio": end, "length": length}, expected
    expected = torch_values(lambda o: transformers.get_linear_schedule_with_warmup(o, warm, total), total)
    yield "linear", {"start_ratio": 1.0, "end_ratio": 0.0, "length": None, "warmup": warm}, expected


def cosines(r: random.Random, total: int) -> Any:
    low, warm, k, cycles = r.random(), r.randrange(1, total), r.uniform(0.5, 2), r.choice([0.5, 1.0, 1.5])
    plain = {"min_ratio": low, "k_decay": 1.0, "num_cycles": 0.5}
    yield "cosine", plain, torch_values(lambda o: lr_scheduler.CosineAnnealingLR(o, total, low * BASE), total)
    with_cycles = torch_values(
        lambda o: transformers.get_cosine_schedule_with_warmup(o, warm, total, cycles), total
    )
    yield "cosine", plain | {"min_ratio": 0.0, "num_cycles": cycles, "warmup": warm}, with_cycles
    lowest = torch_values(
        lambda o: transformers.get_cosine_with_min_lr_schedule_with_warmup(o, warm, total, min_lr_rate=low),
        total,
    )
    yield "cosine", plain | {"warmup": warm}, lowest
    of_k = timm_values(
        lambda o: timm.scheduler.CosineLRScheduler(
            o, total - warm, low * BASE, k_decay=k, warmup_t=warm, warmup_lr_init=0.1 * BASE, warmup_prefix=True,
            t_in_epochs=False,
        ),
        total,
    )  # fmt: skip
    yield "cosine", plain | {"k_decay": k, "warmup": warm, "warmup_init_ratio": 0.1}, of_k


def cosine_cycles(r: random.Random, total: int) -> Any:
    first, mult, low, decay = r.randrange(2, 20), r.choice([1, 2, 3]), r.random(), r.uniform(0.3, 1)
    base = {"first_cycle": first, "num_cycles": None, "cycle_mult": float(mult), "min_ratio": low}
    expected = torch_values(
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, first, mult, low * BASE), total
    )
    yield "cosine_restarts", base | {"cycle_decay": 1.0}, expected
    low *= decay**9  # timm has no cycle below the floor
    of_cycles = timm_values(
        lambda o: timm.scheduler.CosineLRScheduler(
            o, first, low * BASE, cycle_decay=decay, cycle_limit=10**6, t_in_epochs=False
        ),
        total,
    )
    yield "cosine_restarts", base | {"cycle_mult": 1.0, "cycle_decay": decay, "min_ratio": low}, of_cycles
    count, warm = r.randrange(1, 5), r.randrange(total // 2)
    hard = torch_values(
        lambda o: transformers.get_cosine_with_hard_restarts_schedule_with_warmup(o, warm, total, count),
        total,
    )
    equal = {
        "first_cycle": None,
        "num_cycles": count,
        "cycle_mult": 1.0,
        "cycle_decay": 1.0,
        "min_ratio": 0.0,
    }
    yield "cosine_restarts", equal | {"warmup": warm}, hard


def polynomials(r: random.Random, total: int) -> Any:
    power, low, warm, length = (
        r.uniform(0.3, 4),
        r.uniform(0.01, 0.9),
        r.randrange(total),
        r.randrange(1, total),
    )
    expected = torch_values(lambda o: lr_scheduler.PolynomialLR(o, length, power), total)
    yield "polynomial", {"power": power, "end_ratio": 0.0, "length": length}, expected
    base = {"power": power, "end_ratio": low, "length": None}
    expected = torch_values(
        lambda o: transformers.get_polynomial_decay_schedule_with_warmup(o, warm, total, low * BASE, power),
        total,
    )
    yield "polynomial", base | {"warmup": warm}, expected
    poly = timm_values(
        lambda o: timm.scheduler.PolyLRScheduler(o, total, power, low * BASE, t_in_epochs=False), total
    )
    yield "polynomial", base, poly


def exponentials(r: random.Random, total: int) -> Any:
    gamma = r.uniform(0.9, 1)
    expected = torch_values(lambda o: lr_scheduler.ExponentialLR(o, gamma), total)
    yield "exponential", {"gamma": gamma, "end_ratio": None}, expected
    yield "exponential", {"gamma": None, "end_ratio": gamma**total}, expected


def steps(r: random.Random, total: int) -> Any:
    size, gamma, warm = r.randrange(1, total), r.uniform(0.1, 1), r.randrange(1, total)
    base = {"step_size": size, "gamma": gamma}
    yield "step", base, torch_values(lambda o: lr_scheduler.StepLR(o, size, gamma), total)
    of_steps = timm_values(
        lambda o: timm.scheduler.StepLRScheduler(
            o, size, gamma, warmup_t=warm, warmup_lr_init=0.0, warmup_prefix=True, t_in_epochs=False
        ),
        total,
    )
    yield "step", base | {"warmup": warm}, of_steps
    stones = sorted(r.sample(range(1, total), 4))
    base = {"milestones": stones, "gamma": gamma}
    yield "multistep", base, torch_values(lambda o: lr_scheduler.MultiStepLR(o, stones, gamma), total)
    later = [stone + 1 for stone in stones]
    of_stones = timm_values(
        lambda o: timm.scheduler.MultiStepLRScheduler(o, later, gamma, t_in_epochs=False), total
    )
    yield "multistep", base, of_stones


def roots(r: random.Random, total: int) -> Any:
    warm, scale = r.randrange(total), r.randrange(1, 3 * total)
    expected = torch_values(lambda o: transformers.get_inverse_sqrt_schedule(o, warm, scale), total)
    yield "inverse_sqrt", {"timescale": scale, "warmup": warm}, expected


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


def tangents(r: random.Random, total: int) -> Any:
    lb, ub, low = r.uniform(-9, -2), r.uniform(1, 4), r.random()
    expected = timm_values(
        lambda o: timm.scheduler.TanhLRScheduler(o, total, lb, ub, low * BASE, t_in_epochs=False), total
    )
    yield "tanh", {"lb": lb, "ub": ub, "min_ratio": low}, expected


def one_cycles(r: random.Random, total: int) -> Any:
    for strategy, three in itertools.product(("cos", "linear"), (False, True)):
        pct, div, final = r.uniform(0.1, 0.45), r.uniform(2, 50), r.uniform(2, 1e4)
        low, high = r.uniform(0.1, 0.5), 0.9
        base = {"pct_start": pct, "anneal_strategy": strategy, "three_phase": three}

        def make(o: Optimizer, a: Any = (base, div, final, low, high)) -> Any:
            return lr_scheduler.OneCycleLR(o, BASE, total, div_factor=a[1], final_div_factor=a[2],
                                           base_momentum=a[3], max_momentum=a[4], **a[0])  # fmt: skip

        yield "one_cycle", base | {"div_factor": div, "final_div_factor": final}, torch_values(make, total)
        momentum = [value / high * BASE for value in torch_values(make, total, "momentum")]
        yield "one_cycle_momentum", base | {"base_ratio": low / high}, momentum


def cyclics(r: random.Random, total: int) -> Any:
    for mode in ("triangular", "triangular2", "exp_range"):
        up, down, low, gamma = r.randrange(2, 20), r.randrange(2, 20), r.uniform(0.05, 0.9), r.uniform(0.9, 1)
        slow = r.uniform(0.1, 0.8)
        base = {"step_size_up": up, "step_size_down": down, "mode": mode, "gamma": gamma}

        def make(o: Optimizer, a: Any = (base, low, slow)) -> Any:
            return lr_scheduler.CyclicLR(o, a[1] * BASE, BASE, base_momentum=a[2], max_momentum=0.9, **a[0])

        yield "cyclic", base | {"base_ratio": low}, torch_values(make, total)
        momentum = [value / 0.9 * BASE for value in torch_values(make, total, "momentum")]
        yield "cyclic_momentum", base | {"base_ratio": slow / 0.9}, momentum


def lambdas(r: random.Random, total: int) -> Any:
    rate = r.uniform(0.9, 1)
    base = {"fn": lambda n: rate**n, "cumulative": False}
    yield "lambda_", base, torch_values(lambda o: lr_scheduler.LambdaLR(o, lambda n: rate**n), total)
    factor = {"fn": lambda n: rate - n * 1e-6, "cumulative": True}
    yield "lambda_", factor, torch_values(lambda o: lr_scheduler.MultiplicativeLR(o, factor["fn"]), total)


def child(name: str, **arguments: Any) -> Callable[[Clock], Schedule]:
    return lambda clock: getattr(schedules, name)(clock, **(FRAME | arguments))


def composites(r: random.Random, total: int) -> Any:
    first, gamma, start = r.randrange(1, total), r.uniform(0.9, 1), r.uniform(0.1, 1)
    rise = child("linear", start_ratio=start, end_ratio=1.0, length=first)
    fall = child("exponential", gamma=gamma, end_ratio=None)

    def chained(o: Optimizer) -> list[Any]:
        return [lr_scheduler.LinearLR(o, start, 1.0, first), lr_scheduler.ExponentialLR(o, gamma)]

    after = torch_values(lambda o: lr_scheduler.SequentialLR(o, chained(o), [first]), total)
    yield "sequential", {"schedules": {"a": rise, "b": fall}, "lengths": {"a": first, "b": None}}, after
    both = torch_values(lambda o: lr_scheduler.ChainedScheduler(chained(o)), total)
    yield "product", {"schedules": {"a": rise, "b": fall}}, both


REFERENCES: list[References] = [
    constants, lines, cosines, cosine_cycles, polynomials, exponentials, steps, roots, stable, tangents, one_cycles,
    cyclics, lambdas, composites,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("references", REFERENCES, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_equals_the_reference_at_every_update(references: References, seed: int) -> None:
    r = random.Random(seed)
    total = r.randrange(30, 200)
    for name, arguments, expected in references(r, total):
        assert values_of(name, total, **arguments) == pytest.approx(expected, rel=1e-12, abs=1e-16), (
            name,
            arguments,
        )


def test_noise_equals_timm() -> None:
    scheduler = timm.scheduler.CosineLRScheduler(
        sgd(), 50, noise_range_t=(10, 40), noise_pct=0.4, noise_seed=7, t_in_epochs=False
    )
    without_noise = [scheduler._get_values(n, on_epoch=False)[0] for n in range(50)]
    expected = [scheduler._add_noise([value], n)[0] for n, value in enumerate(without_noise)]
    noise = {"noise_ratio": 0.4, "noise_range": [10, 40], "noise_seed": 7}
    values = values_of("cosine", 50, min_ratio=0.0, k_decay=1.0, num_cycles=0.5, **noise)
    assert values == pytest.approx(expected, rel=1e-12)
    assert [n for n in range(50) if abs(values[n] - without_noise[n]) > 1e-9] == list(range(10, 40))


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
    "cyclic": {"base_ratio": 0.1, "step_size_up": 5, "step_size_down": None, "mode": "triangular", "gamma": 1.0},
    "cyclic_momentum": {"base_ratio": 0.5, "step_size_up": 5, "step_size_down": None, "mode": "triangular",
                        "gamma": 1.0},
    "lambda_": {"fn": lambda n: 0.99**n, "cumulative": True},
    "sequential": {"schedules": {"a": child("constant", factor=0.5, length=3),
                                 "b": child("linear", start_ratio=0.5, end_ratio=0.1, length=None)},
                   "lengths": {"a": 5, "b": None}},
    "product": {"schedules": {"a": child("exponential", gamma=0.99, end_ratio=None)}},
}  # fmt: skip
END_VALUES = {"constant": 1.0, "linear": 0.1, "cosine": 0.1, "cosine_restarts": 0.1, "polynomial": 0.1,
              "exponential": 0.1, "rex": 0.1, "wsd": 0.1, "multistep": 0.01, "one_cycle": 1 / 250,
              "one_cycle_momentum": 1.0, "sequential": 0.1}  # fmt: skip


def test_rex_and_the_powers_of_wsd_equal_their_formulas() -> None:
    """Chen et al., 2021, equation 2; Hägele et al., 2024, section 3."""
    rex = build("rex", 100, min_ratio=0.0)
    expected = [(1 - n / 100) / (0.5 + 0.5 * (1 - n / 100)) for n in range(101)]
    assert [rex(n) for n in range(101)] == pytest.approx(expected)
    for power in (0.5, 1.0, 3.0):
        wsd = build("wsd", 100, decay_shape="power", power=power, min_ratio=0.0)
        assert [wsd(80 + n) for n in range(21)] == pytest.approx([1 - (n / 20) ** power for n in range(21)])
    named = build("wsd", 100, decay_shape="1-sqrt", min_ratio=0.1)
    assert [named(n) for n in range(101)] == [
        build("wsd", 100, decay_shape="power", min_ratio=0.1)(n) for n in range(101)
    ]


def test_every_schedule_is_tested() -> None:
    assert set(PLAIN) == {name for name in public_names(schedules) if name[0].islower()} - {"framed"}


def build(name: str, total: int, **frame: Any) -> Schedule:
    return getattr(schedules, name)(clock(total), **(FRAME | PLAIN[name] | frame))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("warmup", "cooldown"), [(0, 0), (7, 0), (0, 9), ("10%", "5%"), ("0.2ep", "50sa")])
def test_parts_meet_without_a_jump_and_the_end_is_exact(name: str, warmup: object, cooldown: object) -> None:
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
    if name == "cosine_restarts" and not warmup and cooldown:  # ends where two cycles meet
        restarts = schedules.cosine_restarts(
            clock(total), **FRAME | {"cooldown": 25, "first_cycle": 25, "num_cycles": None, "cycle_mult": 1.0,
                                     "cycle_decay": 1.0, "min_ratio": 0.1},
        )  # fmt: skip
        assert [restarts(n) for n in range(75, 100)] == pytest.approx([0.1] * 25)
    assert held == pytest.approx([END_VALUES.get(name, curve(total - warm - cool))] * (cool + 1), rel=1e-14)


@pytest.mark.parametrize("name", PLAIN)
def test_a_schedule_is_a_function_of_the_update(name: str) -> None:
    frame = {"warmup": 5, "cooldown": 5, "noise_ratio": 0.1}
    schedule, other = build(name, 50, **frame), build(name, 50, **frame)
    forwards = [schedule(n) for n in range(50)]
    assert [other(n) for n in reversed(range(50))] == forwards[::-1]
    assert all(math.isfinite(value) for value in forwards)


def test_the_shortest_run_and_a_run_of_warmup_only() -> None:
    for name in PLAIN.keys() - {"wsd", "sequential"}:
        assert math.isfinite(build(name, 1)(0))
        assert math.isfinite(build(name, 1)(1))
    all_warm = build("cosine", 10, warmup=10)
    assert [all_warm(n) for n in range(10)] == pytest.approx([0.1 * n for n in range(10)])


def test_restarts_are_exact_where_a_logarithm_rounds() -> None:
    """log(243, 3) is 4.999..., so torch's scheduler, stepped with an epoch number, restarts one cycle too late."""
    frame = {"first_cycle": 1, "num_cycles": None, "cycle_mult": 3.0, "cycle_decay": 1.0, "min_ratio": 0.0}
    schedule = schedules.cosine_restarts(clock(400), **(FRAME | frame))
    starts = [(3**n - 1) // 2 for n in range(7)]
    assert [n for n in range(400) if schedule(n) == 1.0] == [n for n in starts if n < 400]


EPOCHS = [math.ceil(k * 1500 / 64) for k in range(1, 8)]
"""The first updates of epochs, if an epoch of 1,500 samples is 23.4 updates of 64."""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("step", {"step_size": "1ep", "gamma": 1.5}),
        ("cosine_restarts", {"first_cycle": "1ep", "num_cycles": None}),
        ("sequential", {"schedules": {name: child("exponential", gamma=0.9, end_ratio=None) for name in "abcdefgh"},
                        "lengths": {name: "1ep" for name in "abcdefg"} | {"h": None}}),
    ],
)  # fmt: skip
def test_repetitions_stay_in_step_with_the_epochs(name: str, arguments: dict[str, Any]) -> None:
    """The values of these schedules rise only where an epoch begins."""
    schedule = getattr(schedules, name)(
        Clock(1500, Steps.constant(64), 188), **(FRAME | PLAIN[name] | arguments)
    )
    assert [n for n in range(1, 188) if schedule(n) > schedule(n - 1)] == EPOCHS


@pytest.mark.parametrize("cycle_mult", [1.0, 1.5])
def test_a_cycle_that_ends_before_the_last_update_stays_at_its_minimum(cycle_mult: float) -> None:
    """An epoch is 23.4 updates, so its cycle ends within the last of 24."""
    arguments = {"first_cycle": "1ep", "num_cycles": None, "cycle_mult": cycle_mult, "min_ratio": 0.1}
    schedule = schedules.cosine_restarts(
        Clock(1500, Steps.constant(64), 30),
        **(FRAME | PLAIN["cosine_restarts"] | arguments | {"cooldown": 6}),
    )
    assert [schedule(n) for n in range(24, 31)] == [0.1] * 7


def test_each_span_of_a_sequence_has_an_update() -> None:
    factors = {"a": 0.1, "b": 0.2, "c": 0.3}
    parts = {name: child("constant", factor=factor, length=1000) for name, factor in factors.items()}
    schedule = schedules.sequential(
        clock(100), **FRAME, schedules=parts, lengths={"a": "1.5%", "b": "1%", "c": None}
    )
    assert [schedule(n) for n in range(5)] == [0.1, 0.1, 0.2, 0.3, 0.3]


@pytest.mark.parametrize(("up", "down"), [("0.5ep", None), ("0.25ep", "0.75ep"), ("60%", "20%")])
def test_cyclic_turns_where_its_durations_end(up: str, down: str | None) -> None:
    clock = Clock(1500, Steps.constant(64), 188)
    arguments = FRAME | PLAIN["cyclic"] | {"step_size_up": up, "step_size_down": down}
    values = [schedules.cyclic(clock, **arguments)(n) for n in range(188)]
    unit, rise, fall = up.lstrip(".0123456789"), float(up.strip("ep%")), float((down or up).strip("ep%"))
    turns = [
        [clock.updates(f"{k * (rise + fall) + start:g}{unit}", "up") for k in range(8)] for start in (0, rise)
    ]
    assert [n for n in range(188) if values[n] == pytest.approx(0.1)] == [n for n in turns[0] if n < 188]
    assert [n for n in range(188) if values[n] == 1.0] == [n for n in turns[1] if n < 188]


def test_cosine_after_a_warmup_ends_with_the_run() -> None:
    """pytorch-accelerated's cosine is cut off by the warmup's length: at update 70 of 100 it jumps from 0.41 to 0."""
    schedule = schedules.cosine(
        clock(100), **FRAME | {"min_ratio": 0.0, "k_decay": 1.0, "num_cycles": 0.5, "warmup": 30}
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


def building(name: str, total: int, **changed: Any) -> Callable[[], Schedule]:
    def build_checked() -> Schedule:
        arguments = {**FRAME, **PLAIN[name], **changed}
        if "schedules" not in arguments:  # a config has nodes there
            check_arguments(
                "scheduler", {"_target_": f"hydrant.schedules.{name}", "_partial_": True} | arguments
            )
        return getattr(schedules, name)(clock(total), **arguments)

    return build_checked


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (building("cosine", 10, warmup=11), "warmup: 11 updates of warmup"),
        (building("cosine", 10, warmup=1, cooldown=10), "cooldown: 10 updates of cooldown"),
        (building("cosine", 10, min_ratio=-1), "min_ratio: needs a number of 0 or more"),
        (building("cosine", 10, noise_range=[5]), "noise_range: needs a list of 2"),
        (building("wsd", 10), "decay: 20 updates of decay"),
        (building("wsd", 99, decay_shape="sqrt"), "did you mean '1-sqrt'"),
        (building("wsd", 99, power=0.0), "power: needs a number above 0"),
        (building("wsd", 99, min_ratio=0.0), "min_ratio: decay_shape=inverse needs a number above 0"),
        (building("step", 10, step_size=0), "step_size: 0 is less than one update"),
        (building("exponential", 99, gamma=0.9), "gamma: give either gamma"),
        (building("exponential", 99, end_ratio=0.0), "end_ratio: needs a number above 0"),
        (building("cosine_restarts", 99, first_cycle=5), "first_cycle: give either"),
        (building("cosine_restarts", 99, num_cycles=0), "num_cycles: needs a whole number of 1 or more"),
        (building("cosine_restarts", 99, cycle_mult=0.5), "cycle_mult: needs a number of 1 or more"),
        (building("one_cycle", 99, pct_start=0.6), "pct_start: .* below 0.5"),
        (building("one_cycle", 99, anneal_strategy="cosine"), "anneal_strategy: unknown"),
        (building("one_cycle", 99, div_factor=0.0), "div_factor: needs a number above 0"),
        (building("cyclic", 99, mode="triangle"), "mode: .*did you mean 'triangular'"),
        (building("cyclic", 99, step_size_up="0%"), "step_size_up: '0%' is less than one update"),
        (building("sequential", 99, lengths={"a": 5}), "lengths: needs a duration for each of a, b"),
        (building("sequential", 99, lengths={"a": 5, "b": 5}), "lengths: .*exactly one of them null"),
        (building("sequential", 99, lengths={"a": 99, "b": None}), "lengths: no update of the 99 is left"),
        (
            building("sequential", 99, schedules={"a": child("wsd", **PLAIN["wsd"]), "b": child("step")}),
            "schedules.a.decay: 20 updates",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(make: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
