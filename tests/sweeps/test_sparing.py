"""What is repeated for every job takes a tenth of the time at most, however many runs there are."""

import pytest

from hydrant.sweeps.plan import sparing


@pytest.mark.parametrize(("seconds", "num_calls"), [(0.0, 1000), (0.01, 1000), (1.0, 100), (20.0, 5)])
def test_calls_take_a_tenth_of_the_time(
    seconds: float, num_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thousand seconds, a job ends every second."""
    now, calls = 0.0, list[float]()

    @sparing
    def write(job: float) -> None:
        nonlocal now
        calls.append(job)
        now += seconds

    monkeypatch.setattr("time.monotonic", lambda: now)
    for job in range(1000):
        now = max(now, float(job))
        write(job)
    assert calls[0] == 0
    assert len(calls) == num_calls
