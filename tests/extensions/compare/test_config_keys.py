"""The config keys in which runs differ."""

from dataclasses import replace
from pathlib import Path

import pytest
from planted import Compare, write_run

from hydrant.config.flat import key_tables
from hydrant.config.schema import INTERVALS
from hydrant.extensions.compare.run import differing_keys, flat_with_added_keys
from hydrant.extensions.compare.sources import read_runs


def test_keys_that_another_key_determines_are_left_out(tmp_path: Path) -> None:
    for n, (optimizer, lr, root) in enumerate([("adamw", 0.1, "a"), ("sgd", 0.1, "b"), ("sgd", 0.2, "c")]):
        write_run(tmp_path / f"{n}", {"optimizer": optimizer, "optimizer.lr": lr, "data.root": root}, 0.9)
    runs = read_runs([str(tmp_path)])
    assert len({run.config["optimizer._target_"] for run in runs}) == 2
    assert differing_keys(runs) == ["optimizer", "optimizer.lr"]
    assert differing_keys(runs[:1]) == []
    newer = replace(runs[2], config=runs[2].config | {"scheduler.warmup": 5})  # logged by other code
    assert differing_keys([*runs, newer]) == ["optimizer", "optimizer.lr", "scheduler.warmup"]


@pytest.mark.parametrize("patience", [None, 3])
def test_intervals_distinguish_runs_only_if_they_change_the_weights(
    tmp_path: Path, comparing: Compare, patience: int | None
) -> None:
    """Runs that differ in nothing else are repeats, unless evaluations end them early or --by separates them."""
    for n, interval in enumerate(INTERVALS):
        write_run(tmp_path / f"{n}", {interval: 7, "patience": patience}, 0.9)
    expected = [] if patience is None else ["eval_every"]
    assert differing_keys(read_runs([str(tmp_path)])) == expected
    assert [run.state for run in comparing(tmp_path).runs].count("finished") == 1 + len(expected)
    by_interval = comparing(tmp_path, by=["log_every"])
    assert [group.num_runs for group in by_interval.groups] == [1 + len(expected), 1]


def test_the_test_at_the_end_does_not_distinguish_runs(tmp_path: Path) -> None:
    for n, tests in enumerate((False, True)):
        write_run(tmp_path / f"{n}", {"test_at_end": tests, "limit_test_samples": 10 + n}, 0.9)
    assert differing_keys(read_runs([str(tmp_path)])) == []


def test_a_flat_config_has_the_keys_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"data._target_": "hydrant.data.tensors", "data.train": "t.pt"}
    monkeypatch.setitem(key_tables()["removed"], "hydrant.data.tensors", ["outdated"])
    assert flat_with_added_keys(data | {"data.outdated": 1}) == flat_with_added_keys(data)
