"""The config keys in which runs differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planted import write_run

from hydrant.commands.compare.config_keys import differing_keys
from hydrant.commands.compare.sources import read_runs


def test_keys_that_another_key_determines_are_left_out(tmp_path: Path) -> None:
    for n, (optimizer, lr, root) in enumerate([("adamw", 0.1, "a"), ("sgd", 0.1, "b"), ("sgd", 0.2, "c")]):
        write_run(tmp_path / f"{n}", {"optimizer": optimizer, "optimizer.lr": lr, "data.root": root}, 0.9)
    runs = read_runs([str(tmp_path)])
    assert len({run.config["optimizer._target_"] for run in runs}) == 2
    assert differing_keys(runs) == ["optimizer", "optimizer.lr"]
    assert differing_keys(runs[:1]) == []
    newer = replace(runs[2], config=runs[2].config | {"scheduler.warmup": 5})  # logged by other code
    assert differing_keys([*runs, newer]) == ["optimizer", "optimizer.lr", "scheduler.warmup"]
