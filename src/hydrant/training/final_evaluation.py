"""Evaluate the best checkpoint on the test split once, when the run has trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant.errors import log
from hydrant.terminal.text import format_metric
from hydrant.training.checkpoint.content import SavedCheckpoint
from hydrant.training.evaluation import evaluate_splits
from hydrant.training.reports import log_row
from hydrant.training.splits import TEST
from hydrant.training.train_state import restore_weights
from hydrant.training.trainer import Trainer


def test_best(trainer: Trainer, checkpoint: Path | None) -> None:
    """Evaluate the best weights of a run on the test split, and log them in a row: `test/...`, `test_ema/...`.

    The row belongs to the last update; its `test/num_updates` is the update of the weights. The model keeps these
    weights, so nothing may train or save it afterwards. Hooks do not see the row.

    Args:
        trainer: the run. All ranks call this together.
        checkpoint: the best checkpoint; None: the weights of the last update are tested, because there is no other.
    """
    num_updates, best = trainer.state.num_updates, trainer.state.best
    trainer.enter("evaluation")
    with trainer.optimizers.eval_weights():
        if checkpoint is not None and best is not None:
            num_updates = best["num_updates"]
            restore_weights(trainer, SavedCheckpoint(checkpoint))
        row = evaluate_splits(trainer, (TEST,))
    trainer.enter("other")
    if trainer.plan.world.is_rank_zero:
        shown = ", ".join(f"{key} {format_metric(value)}" for key, value in row.items())
        log.info("test of %s: %s", _described(num_updates, best), shown)
    log_row(trainer, {**row, f"{TEST}/num_updates": num_updates})


def _described(num_updates: int, best: Mapping[str, Any] | None) -> str:
    """Return in words which weights are tested."""
    if best is None:
        return f"the last update, {num_updates}"
    if best["num_updates"] == num_updates:
        return f"update {num_updates}, the best {best['metric']}"
    return f"the last update, {num_updates}, because the best, {best['num_updates']}, is not saved"
