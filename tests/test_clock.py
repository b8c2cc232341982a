"""Durations are converted to updates."""

import pytest

from hydrant.clock import Clock, Duration, Interval, Intervals, Steps
from hydrant.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "total"),
    [
        (500, 500),
        ("500", 500),
        ("10ep", 157),
        ("1ep", 16),
        ("0.5ep", 8),
        ("640sa", 10),
        ("641sa", 11),
        (1e2, 100),
    ],
)
def test_total_updates_of_a_duration(written: object, total: int) -> None:
    """With 1,000 samples and a batch size of 64, an epoch is 15.625 updates, which are rounded up."""
    assert Clock.start(written, num_samples=1000, batch_sizes=Steps.constant(64)).total_updates == total


@pytest.mark.parametrize(("written", "updates"), [("5%", 10), ("100%", 200), ("0%", 0), ("0.4%", 1), (7, 7)])
def test_durations_within_a_run(written: object, updates: int) -> None:
    assert Clock(1000, Steps.constant(10), 200).updates(written, "scheduler.warmup") == updates


@pytest.mark.parametrize(
    "written", ["ten", "10 epochs", "-5", "", None, True, "5%%", "1e", "nan", "inf", "10EP", "0x10"]
)
def test_other_text_is_rejected_as_a_duration(written: object) -> None:
    with pytest.raises(ConfigError, match=r"duration: .* is not a duration"):
        Duration.parse(written, "duration")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("1.5", "'1.5' is not a duration; write 500 \\(updates\\), 10ep"),
        ("50%", "'50%' is not a duration"),
        (0, "less than one update"),
        ("0ep", "less than one update"),
    ],
)
def test_impossible_durations_of_a_run_are_rejected(written: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Clock.start(written, num_samples=1000, batch_sizes=Steps.constant(64))


def test_epochs_are_exact_however_large() -> None:
    samples = 10**9 + 7
    assert Clock.start("3ep", num_samples=samples, batch_sizes=Steps.constant(3)).total_updates == samples


def test_intervals() -> None:
    assert [
        n for n in range(10) if Clock(100, Steps.constant(10), 100).interval("0.4ep", "log_every").due(n)
    ] == [4, 8]
    assert not any(Interval(None).due(n) for n in range(10))
    with pytest.raises(ConfigError, match="null for never"):
        Clock(100, Steps.constant(10), 100).interval(0, "log_every")


def test_a_run_ends_with_whole_updates() -> None:
    assert Clock.start("2ep", num_samples=100, batch_sizes=Steps.constant(64)).total_updates == 4


@pytest.mark.parametrize(
    ("amount", "unit", "times"),
    [(1, "ep", 60), (2.5, "ep", 24), (100, "sa", 900), (5, "%", 20), (24, "", 58)],
)
def test_intervals_stay_in_step_with_the_run(amount: float, unit: str, times: int) -> None:
    """An epoch of 1,500 samples is 23.4 updates of 64, and 60 epochs are 1,407 updates."""
    clock = Clock.start("60ep", num_samples=1500, batch_sizes=Steps.constant(64))
    interval = clock.interval(f"{amount}{unit}", "eval_every")
    due = [n for n in range(clock.total_updates + 1) if interval.due(n)]
    assert due == [clock.updates(f"{amount * k:g}{unit}", "eval_every") for k in range(1, times + 1)]
    assert [interval.count(n) for n in range(1, 1408)] == [sum(m <= n for m in due) for n in range(1, 1408)]
    intervals = Intervals(interval, Interval(7), Interval(None), Interval(None))
    logged = [n for n in range(1, 1408) if intervals.due(n).log]
    assert logged == due


def test_an_interval_of_less_than_one_update_is_due_after_every_update() -> None:
    assert [
        n for n in range(4) if Clock(1500, Steps.constant(64), 20).interval("1%", "log_every").due(n)
    ] == [1, 2, 3]
