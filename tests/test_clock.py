"""Durations are converted to updates."""

from __future__ import annotations

import pytest

from hydrant.clock import Clock, Duration, Interval
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
    assert Clock.start(written, num_samples=1000, global_batch_size=64).total_updates == total


@pytest.mark.parametrize(("written", "updates"), [("5%", 10), ("100%", 200), ("0%", 0), ("0.4%", 1), (7, 7)])
def test_durations_within_a_run(written: object, updates: int) -> None:
    assert Clock(1000, 10, 200).updates(written, "scheduler.warmup") == updates


@pytest.mark.parametrize(
    "written", ["ten", "10 epochs", "-5", "", None, True, "5%%", "1e", "nan", "inf", "10EP", "0x10"]
)
def test_other_text_is_rejected_as_a_duration(written: object) -> None:
    with pytest.raises(ConfigError, match=r"duration: .* is not a duration"):
        Duration.parse(written, "duration")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("1.5", "1.5ep"),
        ("50%", "relative to itself"),
        (0, "less than one update"),
        ("0ep", "less than one update"),
    ],
)
def test_impossible_durations_of_a_run_are_rejected(written: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Clock.start(written, num_samples=1000, global_batch_size=64)


def test_epochs_are_exact_however_large() -> None:
    samples = 10**9 + 7
    assert Clock.start("3ep", num_samples=samples, global_batch_size=3).total_updates == samples


def test_intervals() -> None:
    assert [n for n in range(10) if Clock(100, 10, 100).interval("0.4ep", "log_every").due(n)] == [4, 8]
    assert not any(Interval(None).due(n) for n in range(10))
    with pytest.raises(ConfigError, match="null for never"):
        Clock(100, 10, 100).interval(0, "log_every")


def test_a_run_ends_with_whole_updates() -> None:
    assert Clock.start("2ep", num_samples=100, global_batch_size=64).total_updates == 4
