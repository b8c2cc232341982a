"""The importance of keys."""

from __future__ import annotations

import math
from pathlib import Path

from planted import Compare, write_run


def test_the_key_that_decides_has_the_largest_importance(tmp_path: Path, comparing: Compare) -> None:
    for seed in range(3):
        for lr in (0.001, 0.01, 0.1):
            for optimizer in ("adamw", "sgd"):
                final = 0.5 + 0.1 * math.log10(lr) + (0.02 if optimizer == "sgd" else 0) + 0.001 * seed % 2
                overrides = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
                write_run(tmp_path / f"{optimizer}-{lr}-{seed}", overrides, final)
    importance = comparing(tmp_path).importance
    assert importance is not None
    assert [key for key, _, _ in importance.keys][:2] == ["optimizer.lr", "optimizer"]
    assert importance.num_runs == 18
    assert importance.is_reliable
    assert comparing(tmp_path / "sgd-0.1-*").importance is None, "three runs are too few"
