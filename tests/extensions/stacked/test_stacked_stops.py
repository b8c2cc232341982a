"""Signals at any moment of a stacked sweep, also again and again: its lanes then continue to the rows of a whole one.

A lane is stopped after the update that it has made, so a signal during the work of a log point stops some lanes an
update later than others. A second Ctrl-C leaves each at its last checkpoint.
"""

import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attacks import Trials
from marks import slow
from run_folders import assert_same_state, rows, training, weights
from tiny_runs import tiny_job

from hydrant.extensions.stacked.runs import execute_stack
from hydrant.extensions.stacked.stack import Stack
from hydrant.runs.job import Job
from hydrant.training import loop

LANES = ("seed=0", "seed=1", "seed=2", "seed=3")
WORDS = ("duration=25", "log_every=10", "eval_every=12", "save_every=8", "histogram_every=null")
STOPS = ((signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT))
MOMENTS = ((Stack, "update"), (Stack, "sync"), (loop, "begin_update"), (loop, "finish_update"))
NUM_MOMENTS = 80  # at least so many calls of these are made by four lanes


class Moments:
    """Calls of the functions of a stack, of which some receive signals."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left, self.signals = 0, tuple[signal.Signals, ...]()
        for owner, name in MOMENTS:
            patch.setattr(owner, name, self._observed(getattr(owner, name)))

    def _observed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object, **named: object) -> Any:
            self.left -= 1
            if self.left == 0:
                for signum in self.signals:
                    signal.raise_signal(signum)
            return function(*arguments, **named)

        return call

    def stop_after(self, num_calls: int, signals: Sequence[signal.Signals]) -> None:
        self.left, self.signals = num_calls, tuple(signals)


def jobs_in(folder: Path, *words: str) -> list[Job]:
    jobs = [tiny_job(folder / lane, *WORDS, *words, lane) for lane in LANES]
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
    return jobs


def assert_same_runs(folder: Path, whole: Path) -> None:
    for lane in LANES:
        assert rows(folder / lane) == rows(whole / lane)
        assert_same_state(weights(folder / lane), weights(whole / lane))
        assert_same_state(training(folder / lane), training(whole / lane))


@pytest.mark.parametrize("words", [(), *slow((("micro_batch_size=4",),))], ids=["plain", "micro-batches"])
def test_a_stopped_stack_continues_to_the_rows_of_a_whole_one(
    words: Sequence[str], trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments, rng = Moments(monkeypatch), random.Random(0)
    assert [result.exit_status for result in execute_stack(jobs_in(tmp_path / "whole", *words))] == [0] * 4
    cases = [(f, rng.choices(range(1, NUM_MOMENTS), k=rng.randrange(3))) for f in range(1, NUM_MOMENTS)]
    for first, later in trials.of(cases, minimum=2):
        folder = tmp_path / f"stopped_{first}"
        for num_calls in (first, *later):
            moments.stop_after(num_calls, rng.choice(STOPS))
            execute_stack(jobs_in(folder, *words))
        moments.stop_after(0, ())
        assert [result.exit_status for result in execute_stack(jobs_in(folder, *words))] == [0] * 4, (
            first,
            later,
        )
        assert_same_runs(folder, tmp_path / "whole")
