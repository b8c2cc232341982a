"""Amounts that change at given updates are summed and reached exactly."""

from fractions import Fraction

import pytest

from hydrant.clock import Clock, Interval, SampleCosts, Steps, UpdateSeconds, batch_size_steps
from hydrant.errors import ConfigError

SIZES = Steps((0, 3, 10), (64, 32, 128))
TOTALS = [sum(SIZES.value(k) for k in range(n)) for n in range(60)]  # samples after n updates


def test_totals_are_the_sums_of_the_values() -> None:
    assert [SIZES.value(n) for n in (0, 2, 3, 9, 10, 99)] == [64, 64, 32, 32, 128, 128]
    assert [SIZES.total(n) for n in range(60)] == TOTALS


def test_an_amount_is_reached_within_the_update_that_has_it() -> None:
    for amount in range(1, 1500, 7):
        reached = SIZES.reach(amount)
        n = -(-reached.numerator // reached.denominator)
        assert TOTALS[n - 1] < amount <= TOTALS[n]
    assert [SIZES.reach(total) for total in TOTALS] == list(range(60))


def test_steps_since_an_update_have_the_later_values() -> None:
    for start in range(14):
        later = SIZES.since(start)
        assert [later.value(n) for n in range(20)] == [SIZES.value(n + start) for n in range(20)]


@pytest.mark.parametrize(
    ("duration", "samples"),
    [("2ep", 200), ("1.37ep", 137), ("500sa", 500), ("300tok", 150), ("1.3kflop", 130)],
)
def test_intervals_are_due_where_their_multiples_are_reached(duration: str, samples: int) -> None:
    clock = Clock(100, SIZES, 59, SampleCosts(tokens=2, flops=10))
    interval = clock.interval(duration, "eval_every")
    due = [n for n in range(1, 60) if TOTALS[n] // samples > TOTALS[n - 1] // samples]
    assert [n for n in range(60) if interval.due(n)] == due
    assert [interval.count(n) for n in range(60)] == [sum(m <= n for m in due) for n in range(60)]
    assert [interval.following(n) for n in range(due[-1])] == [
        min(m for m in due if m > n) for n in range(due[-1])
    ]


def test_intervals_in_seconds_are_rounded_to_the_nearest_update() -> None:
    clock = Clock(100, SIZES, 59, update_seconds=UpdateSeconds({64: 2.0, 32: 1.0, 128: 4.0}))
    interval = clock.interval("6.6s", "eval_every")
    due = [clock.updates(f"{6.6 * k:.1f}s", "duration") for k in range(1, interval.count(59) + 1)]
    assert [n for n in range(60) if interval.due(n)] == due
    assert due[:3] == [4, 10, 12]  # 6.6, 13.2 and 19.8 s: updates end at 2, 4, 6, 7, ... 13, 17, 21 s


def test_an_interval_that_is_shorter_than_a_large_update_is_due_once_in_it() -> None:
    interval = Clock(100, Steps((0, 4), (32, 128)), 9).interval("64sa", "log_every")
    assert [n for n in range(9) if interval.due(n)] == [2, 4, 5, 6, 7, 8]
    assert interval.count(8) == 6


@pytest.mark.parametrize(
    ("duration", "samples"),
    [("300sa", 300), ("1ep", 200), ("384sa", 384), ("2ksa", 2000), ("0.5ktok", 250), ("3.2kflop", 320)],
)
def test_durations_count_the_samples_of_every_update(duration: str, samples: int) -> None:
    sizes, costs = Steps((0, 3), (64, 32)), SampleCosts(tokens=2, flops=10)
    clock = Clock.start(duration, num_samples=200, batch_sizes=sizes, costs=costs)
    assert sizes.total(clock.total_updates - 1) < samples <= sizes.total(clock.total_updates)
    assert clock.epoch(clock.total_updates) == sizes.total(clock.total_updates) / 200


def test_a_duration_at_the_end_counts_the_updates_there() -> None:
    clock = Clock(320, SIZES, 20)
    for samples in (1, 128, 129, 320, 1280, 1281, 1600):
        num = clock.updates_before(20, f"{samples}sa", "cooldown")
        assert TOTALS[20] - TOTALS[20 - num] >= samples > TOTALS[20] - TOTALS[20 - num + 1]
    assert clock.updates_before(20, "25%", "cooldown") == 5
    assert clock.updates_before(20, f"{TOTALS[20] + 64}sa", "cooldown") == 21  # longer than the run


def test_sizes_begin_at_durations_of_the_sizes_before() -> None:
    sizes = batch_size_steps({"0": 10, "1ep": 20, "3ep": 50, "400sa": 5}, num_samples=100)
    assert sizes == Steps((0, 10, 20, 22), (10, 20, 50, 5))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"5": 64}, "64 cannot begin at '5'; begin the first at 0"),
        ({"0": 64, "9": 32, "4": 8}, "8 cannot begin at '4'"),
        ({"0": 64, "0ep": 32}, "32 cannot begin at '0ep'"),
        ({"0": 64, "50%": 32}, "cannot begin at '50%'"),
        ({"0": 64, "5min": 32}, "cannot begin at '5min'"),
        ({}, "needs a number"),
    ],
)
def test_impossible_steps_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^global_batch_size: .*{message}"):
        batch_size_steps(sizes, num_samples=100)


@pytest.mark.parametrize(("duration", "lacking"), [("10Mtok", "tokens"), ("1e15flop", "FLOPs")])
def test_units_that_samples_lack_are_refused(duration: str, lacking: str) -> None:
    with pytest.raises(ConfigError, match=f"^duration: '{duration}' counts {lacking}, but"):
        Clock.start(duration, num_samples=100, batch_sizes=Steps.constant(10))


def test_seconds_are_assumed_until_they_are_measured() -> None:
    sizes = Steps((0, 10), (8, 16))
    clock = Clock.start("30s", num_samples=100, batch_sizes=sizes)
    assert (clock.total_updates, clock.unmeasured_sizes) == (10_000, [8, 16])
    measured = UpdateSeconds({8: 0.5, 16: 0.75})
    clock = Clock.start("0.5min", num_samples=100, batch_sizes=sizes, update_seconds=measured)
    assert clock.total_updates == 10 + round((30 - 10 * 0.5) / 0.75)
    assert clock.unmeasured_sizes == []
    assert clock.updates("5.75s", "warmup") == 11


def test_nothing_is_to_be_measured_if_no_duration_is_in_seconds() -> None:
    clock = Clock.start("3ep", num_samples=100, batch_sizes=Steps.constant(10))
    clock.interval("5%", "log_every")
    assert clock.unmeasured_sizes == []


def test_a_constant_axis_gives_the_interval_in_updates() -> None:
    assert Clock(1500, Steps.constant(64), 60).interval("1ep", "eval_every") == Interval(Fraction(1500, 64))
