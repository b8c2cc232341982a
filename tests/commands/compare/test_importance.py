"""The importance of keys."""

from __future__ import annotations

import math
from pathlib import Path

from planted import Compare, write_run

from hydrant.commands.compare.text_report import to_text


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


def test_importances_of_a_forest_that_predicts_nothing_are_not_shown(
    tmp_path: Path, comparing: Compare
) -> None:
    for seed in range(8):
        for lr in (0.01, 0.1):
            write_run(tmp_path / f"{lr}-{seed}", {"optimizer.lr": lr, "seed": seed}, 0.5 + 0.01 * (seed % 2))
    comparison = comparing(tmp_path)
    assert comparison.importance is not None
    assert comparison.importance.fit < 0
    assert "importance: not shown, because" in to_text(comparison, None, details=True)
