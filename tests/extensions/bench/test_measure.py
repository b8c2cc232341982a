"""A measurement makes the updates of a run, or contains the error."""

from pathlib import Path

import pytest
from run_folders import rows
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.extensions.bench.command import CellResult, Measurement, measure_cells

WORDS = (
    "tracker=local",
    "model.hidden=[8]",
    "model.dropout=0.3",
    "duration=4",
    "log_every=1",
    "eval_every=null",
)


def measured(*words: str, num_updates: int = 3) -> Measurement:
    cells = [CellResult({}, check(compose([*WORDS, *words])))]
    measured = measure_cells(cells, repeats=1, num_updates=num_updates, warmup=1, cache_dir=Path("cache"))
    return next(measured).repeats[0]


@pytest.mark.slow
def test_the_updates_equal_those_of_a_run_and_no_file_is_left(train: Train, workdir: Path) -> None:
    words = ("micro_batch_size=16", "precision=bf16", "best.metric=val/loss", "best.mode=min")
    measurement = measured(*words)
    assert list(workdir.iterdir()) == []
    assert measurement.error is None
    assert measurement.losses == [row["train/loss"] for row in rows(train(*WORDS, *words))]
    assert len(measurement.losses) == 4
    assert len(measurement.update_seconds) == 3
    assert measurement.flops_per_update == 3 * 64 * 2 * (64 * 8 + 8 * 10)
    assert measurement.compile["graphs"] == 0


def test_errors_of_a_measurement() -> None:
    assert "train/loss became NaN" in (measured("optimizer.lr=1e30").error or "")
    short = measured(num_updates=4)
    assert (short.error, short.is_refused) == (
        "duration: the run has 4 updates, but 5 are needed; use duration=5",
        True,
    )
