"""The best evaluation, its checkpoint, and `patience`."""

import math

import pytest
from run_folders import rows, summary
from training_runs import DIGITS, Train, interrupt_at

from hydrant.training import reports
from hydrant.training.trainer import Trainer


def test_the_best_checkpoint_is_the_best_evaluation(train: Train) -> None:
    folder = train(*DIGITS, "duration=24", "keep_last=1", "optimizer.lr=0.05", "scheduler=constant")
    evaluations = {row["num_updates"]: row["val/accuracy"] for row in rows(folder) if "val/accuracy" in row}
    best = summary(folder)["best"]
    assert best["value"] == max(evaluations.values())
    assert evaluations[best["num_updates"]] == best["value"]
    assert (folder / "checkpoints" / "best").resolve().name == f"update_{best['num_updates']:08d}"
    assert (folder / "checkpoints" / "last").resolve().name == "update_00000024"
    assert len([p for p in (folder / "checkpoints").iterdir() if not p.is_symlink()]) <= 2


def test_the_best_loss_is_the_lowest_and_never_infinite(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, losses = reports.evaluate_run, {8: 1.0, 12: 2.0}

    def fake_evaluation(trainer: Trainer) -> dict[str, float]:
        return evaluate(trainer) | {"val/loss": losses.get(trainer.state.num_updates, math.inf)}

    monkeypatch.setattr(reports, "evaluate_run", fake_evaluation)
    best = summary(train(*DIGITS, "duration=12", "best.metric=val/loss", "best.mode=min"))["best"]
    assert (best["num_updates"], best["value"]) == (8, 1.0)


def test_a_run_without_a_new_best_for_patience_evaluations_finishes_early(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate, accuracies = reports.evaluate_run, {4: 0.5, 8: 0.7, 12: 0.6, 16: 0.7, 20: 0.8, 24: 0.1, 36: 0.9}

    def fake_evaluation(trainer: Trainer) -> dict[str, float]:
        return evaluate(trainer) | {"val/accuracy": accuracies.get(trainer.state.num_updates, 0.0)}

    monkeypatch.setattr(reports, "evaluate_run", fake_evaluation)
    words = (*DIGITS, "duration=50", "patience=3", "save_every=40", "log_every=15")
    folder = train(*words, name="whole")
    assert "finished: 32 updates (no new best within patience)" in capsys.readouterr().out
    record = summary(folder)
    assert (record["status"], record["num_updates"], record["total_updates"]) == ("finished", 32, 50)
    assert record["best"]["num_updates"] == 20
    assert [row["num_updates"] for row in rows(folder) if "train/loss" in row] == [15, 30, 32]
    assert (folder / "checkpoints" / "last").resolve().name == "update_00000032"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 14)
        train(*words, name="broken", status=130)
    assert rows(train(*words, name="broken")) == rows(folder)
    train(*words, name="broken")
    assert "already finished" in capsys.readouterr().out
