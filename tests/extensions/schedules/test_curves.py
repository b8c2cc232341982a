"""The curves and cycles equal the reference implementation at every update, and check arguments."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import schedule_curves as shared
import timm.scheduler
import transformers.optimization as transformers
from public_names import public_names
from schedule_curves import BASE, FRAME, PLAIN, Optimizer, References, build, child, timm_values, torch_values
from torch.optim import lr_scheduler
from training_runs import Train

from hydrant.clock import Clock, Steps
from hydrant.errors import ConfigError
from hydrant.extensions import schedules
from hydrant.schedules import Schedule

building = shared.building


def cosine_cycles(r: random.Random, total: int) -> Any:
    first, mult, low, decay = r.randrange(2, 20), r.choice([1, 2, 3]), r.random(), r.uniform(0.3, 1)
    base = {"first_cycle": first, "num_cycles": None, "cycle_mult": float(mult), "min_ratio": low}
    expected = torch_values(lr_scheduler.CosineAnnealingWarmRestarts, total, first, mult, low * BASE)
    yield "cosine_restarts", base | {"cycle_decay": 1.0}, expected
    low *= decay**9  # timm has no cycle below the floor
    of_cycles = timm_values(
        timm.scheduler.CosineLRScheduler, total, first, low * BASE, cycle_decay=decay, cycle_limit=10**6
    )
    yield "cosine_restarts", base | {"cycle_mult": 1.0, "cycle_decay": decay, "min_ratio": low}, of_cycles
    count, warm = r.randrange(1, 5), r.randrange(total // 2)
    hard = torch_values(
        transformers.get_cosine_with_hard_restarts_schedule_with_warmup, total, warm, total, count
    )
    equal = base | {"first_cycle": None, "num_cycles": count, "cycle_mult": 1.0, "cycle_decay": 1.0}
    yield "cosine_restarts", equal | {"min_ratio": 0.0, "warmup": warm}, hard


def polynomials(r: random.Random, total: int) -> Any:
    power, low, warm = r.uniform(0.3, 4), r.uniform(0.01, 0.9), r.randrange(total)
    length = r.randrange(1, total)
    expected = torch_values(lr_scheduler.PolynomialLR, total, length, power)
    yield "polynomial", {"power": power, "end_ratio": 0.0, "length": length}, expected
    base = {"power": power, "end_ratio": low, "length": None}
    expected = torch_values(
        transformers.get_polynomial_decay_schedule_with_warmup, total, warm, total, low * BASE, power
    )
    yield "polynomial", base | {"warmup": warm}, expected
    poly = timm_values(timm.scheduler.PolyLRScheduler, total, total, power, low * BASE)
    yield "polynomial", base, poly


def steps(r: random.Random, total: int) -> Any:
    size, gamma, warm = r.randrange(1, total), r.uniform(0.1, 1), r.randrange(1, total)
    base = {"step_size": size, "gamma": gamma}
    yield "step", base, torch_values(lr_scheduler.StepLR, total, size, gamma)
    warmed = {"warmup_t": warm, "warmup_lr_init": 0.0, "warmup_prefix": True}
    of_steps = timm_values(timm.scheduler.StepLRScheduler, total, size, gamma, **warmed)
    yield "step", base | {"warmup": warm}, of_steps
    stones = sorted(r.sample(range(1, total), 4))
    base = {"milestones": stones, "gamma": gamma}
    yield "multistep", base, torch_values(lr_scheduler.MultiStepLR, total, stones, gamma)
    later = [stone + 1 for stone in stones]
    of_stones = timm_values(timm.scheduler.MultiStepLRScheduler, total, later, gamma)
    yield "multistep", base, of_stones


def roots(r: random.Random, total: int) -> Any:
    warm, scale = r.randrange(total), r.randrange(1, 3 * total)
    expected = torch_values(transformers.get_inverse_sqrt_schedule, total, warm, scale)
    yield "inverse_sqrt", {"timescale": scale, "warmup": warm}, expected


def tangents(r: random.Random, total: int) -> Any:
    lb, ub, low = r.uniform(-9, -2), r.uniform(1, 4), r.random()
    expected = timm_values(timm.scheduler.TanhLRScheduler, total, total, lb, ub, low * BASE)
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
        momentum = [value / high * BASE for value in torch_values(make, total, field="momentum")]
        yield "one_cycle_momentum", base | {"base_ratio": low / high}, momentum


def cyclics(r: random.Random, total: int) -> Any:
    for mode in ("triangular", "triangular2", "exp_range"):
        up, down, low, gamma = r.randrange(2, 20), r.randrange(2, 20), r.uniform(0.05, 0.9), r.uniform(0.9, 1)
        slow = r.uniform(0.1, 0.8)
        base = {"step_size_up": up, "step_size_down": down, "mode": mode, "gamma": gamma}

        def make(o: Optimizer, a: Any = (base, low, slow)) -> Any:
            return lr_scheduler.CyclicLR(o, a[1] * BASE, BASE, base_momentum=a[2], max_momentum=0.9, **a[0])

        yield "cyclic", base | {"base_ratio": low, "is_inverted": False}, torch_values(make, total)
        momentum = [value / 0.9 * BASE for value in torch_values(make, total, field="momentum")]
        yield "cyclic", base | {"base_ratio": slow / 0.9, "is_inverted": True}, momentum


def lambdas(r: random.Random, total: int) -> Any:
    rate = r.uniform(0.9, 1)
    base = {"fn": lambda n: rate**n, "cumulative": False}
    yield "lambda_", base, torch_values(lr_scheduler.LambdaLR, total, lambda n: rate**n)
    factor = {"fn": lambda n: rate - n * 1e-6, "cumulative": True}
    yield "lambda_", factor, torch_values(lr_scheduler.MultiplicativeLR, total, factor["fn"])


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


ALL = (cosine_cycles, polynomials, steps, roots, tangents, one_cycles, cyclics, lambdas, composites)


@pytest.mark.parametrize("references", ALL, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_equals_the_reference_at_every_update(references: References) -> None:
    shared.check_references(references)


@pytest.mark.parametrize("name", shared.plain_names(schedules))
def test_parts_meet_without_a_jump_and_values_depend_on_the_update_alone(name: str) -> None:
    shared.check_schedule(name)


def test_every_schedule_is_tested() -> None:
    assert {*shared.plain_names(schedules)} == {name for name in public_names(schedules) if name[0].islower()}


def test_rex_equals_its_formula() -> None:
    """Chen et al., 2021, equation 2."""
    rex = build("rex", 100, min_ratio=0.0)
    expected = [(1 - n / 100) / (0.5 + 0.5 * (1 - n / 100)) for n in range(101)]
    assert [rex(n) for n in range(101)] == pytest.approx(expected)


def test_restarts_hold_the_value_where_two_cycles_meet() -> None:
    restarts = schedules.cosine_restarts(
        shared.clock(100), **FRAME | {"cooldown": 25, "first_cycle": 25, "num_cycles": None, "cycle_mult": 1.0,
                                 "cycle_decay": 1.0, "min_ratio": 0.1},
    )  # fmt: skip
    assert [restarts(n) for n in range(75, 100)] == pytest.approx([0.1] * 25)


def test_restarts_are_exact_where_a_logarithm_rounds() -> None:
    """log(243, 3) is 4.999..., so torch's scheduler, stepped with an epoch number, restarts one cycle too late."""
    frame = {"first_cycle": 1, "num_cycles": None, "cycle_mult": 3.0, "cycle_decay": 1.0, "min_ratio": 0.0}
    schedule = schedules.cosine_restarts(shared.clock(400), **(FRAME | frame))
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
        shared.clock(100), **FRAME, schedules=parts, lengths={"a": "1.5%", "b": "1%", "c": None}
    )
    assert [schedule(n) for n in range(5)] == [0.1, 0.1, 0.2, 0.3, 0.3]


@pytest.mark.parametrize(("up", "down"), [("0.5ep", None), ("0.25ep", "0.75ep"), ("60%", "20%")])
def test_cyclic_turns_where_its_durations_end(up: str, down: str | None) -> None:
    clock = Clock(1500, Steps.constant(64), 188)
    arguments = FRAME | PLAIN["cyclic"] | {"step_size_up": up, "step_size_down": down}
    values = [schedules.cyclic(clock, **arguments)(n) for n in range(188)]
    unit, rise, fall = up.lstrip(".0123456789"), float(up.strip("ep%")), float((down or up).strip("ep%"))
    turns = [[clock.updates(f"{k * (rise + fall) + s:g}{unit}", "up") for k in range(8)] for s in (0, rise)]
    assert [n for n in range(188) if values[n] == pytest.approx(0.1)] == [n for n in turns[0] if n < 188]
    assert [n for n in range(188) if values[n] == 1.0] == [n for n in turns[1] if n < 188]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (building("step", 10, step_size=0), "step_size: 0 is less than one update"),
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


def test_only_functions_of_the_update_are_parts_of_another_schedule(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    second = "scheduler@scheduler.schedules.second"
    class_name = "scheduler.schedules.second.fn._target_=torch.optim.lr_scheduler.ConstantLR"
    for words in ((f"{second}=plateau",), (f"{second}=stepped", class_name)):
        train("tracker=local", "scheduler=product", *words, status=2)
        message = "scheduler.schedules.second: only a function of the update can be part of another schedule"
        assert message in capsys.readouterr().err
