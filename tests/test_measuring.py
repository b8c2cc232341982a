"""A measurement makes the updates of a run, and says why it could not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from checks import rows

from hydrant.config import check, compose
from hydrant.measuring import Cell, Measurement, measure_grid

WORDS = (
    "tracker=local",
    "model.hidden=[8]",
    "model.dropout=0.3",
    "duration=4",
    "log_every=1",
    "eval_every=null",
)


def measured(*words: str, num_updates: int = 3) -> Measurement:
    cells = [Cell({}, check(compose([*WORDS, *words])))]
    grid = measure_grid(cells, repeats=1, num_updates=num_updates, warmup=1, cache_dir=Path("cache"))
    return next(iter(grid))[1]


def test_the_updates_are_those_of_a_run_and_nothing_is_left_behind(
    train: Callable[..., Path], workdir: Path
) -> None:
    words = ("micro_batch_size=16", "precision=bf16", "best.metric=val/loss", "best.mode=min")
    found = measured(*words)
    assert list(workdir.iterdir()) == []
    assert found.error is None
    assert found.losses == [row["train/loss"] for row in rows(train(*WORDS, *words))]
    assert found.loss == found.losses[3]
    assert len(found.update_seconds) == 3
    assert found.flops_per_update == 3 * 64 * 2 * (64 * 8 + 8 * 10)
    assert found.compile["graphs"] == 0


def test_why_there_is_no_measurement() -> None:
    assert "train/loss became NaN" in (measured("optimizer.lr=1e30").error or "")
    short = measured(num_updates=4)
    assert (short.error, short.is_refused) == (
        "duration: 4 updates are fewer than the 5 to make; give duration=5",
        True,
    )
