"""Durations in updates."""

from __future__ import annotations

import pytest

from hydrant.clock import Cadence, Clock, Duration
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
def test_the_horizon(written: object, total: int) -> None:
    """1,000 samples in updates of 64: an epoch is 15.625 updates, so whole epochs need 16 a piece at most."""
    assert Clock.start(written, num_samples=1000, global_batch_size=64).total_updates == total


@pytest.mark.parametrize(("written", "updates"), [("5%", 10), ("100%", 200), ("0%", 0), ("0.4%", 1), (7, 7)])
def test_within_the_run(written: object, updates: int) -> None:
    assert Clock(1000, 10, 200).updates(written, "scheduler.warmup") == updates


@pytest.mark.parametrize(
    "written", ["ten", "10 epochs", "-5", "", None, True, "5%%", "1e", "nan", "inf", "10EP", "0x10"]
)
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(ConfigError, match=r"duration: .* is no duration"):
        Duration.parse(written, "duration")


@pytest.mark.parametrize(
    ("written", "message"),
    [("1.5", "1.5ep"), ("50%", "share of itself"), (0, "no update"), ("0ep", "no update")],
)
def test_what_is_no_horizon(written: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Clock.start(written, num_samples=1000, global_batch_size=64)


def test_epochs_are_exact_however_large() -> None:
    samples = 10**9 + 7
    assert Clock.start("3ep", num_samples=samples, global_batch_size=3).total_updates == samples


def test_cadences() -> None:
    assert [n for n in range(10) if Clock(100, 10, 100).cadence("0.4ep", "log_every").due(n)] == [4, 8]
    assert not any(Cadence(None).due(n) for n in range(10))
    with pytest.raises(ConfigError, match="null for never"):
        Clock(100, 10, 100).cadence(0, "log_every")
