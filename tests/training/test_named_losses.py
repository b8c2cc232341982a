"""Losses by name: which optimizers follow them, what is logged of them, and the same on ranks."""

from pathlib import Path

import named_losses
import pytest
import torch
from ranks import run_on_ranks
from run_folders import rows, summary, weights
from training_runs import Train

WORDS = ("tracker=local", "allow_targets=[named_losses]", "~model", "+model._target_=named_losses.Heads", "~task",
         "+task={_target_: named_losses.NamedLosses, _partial_: true, names: [g/a, b]}", "optimizer=sgd",
         "global_batch_size=32", "duration=8", "log_every=4", "eval_every=4", "max_grad_norm=null")  # fmt: skip
TURNS = (
    "+optimizers={a: {parts: [trunk, a], losses: [g/a]}, b: {parts: [b], losses: [b]}}",
    "update_order=[[a, b]]",
)
SHARED = "+optimizers={a: {parts: [trunk, a], losses: [g/a, b]}, b: {parts: [b], losses: [b]}}"


def test_the_losses_of_turns_add_up_whatever_their_names(train: Train) -> None:
    last = rows(train(*WORDS, *TURNS))[-1]
    assert last["train/loss"] == pytest.approx(last["g/a"] + last["train/b"])


@pytest.mark.slow
def test_two_losses_of_a_weight_and_a_metric_of_one_rank(tmp_path: Path, train: Train) -> None:
    words = (
        *WORDS,
        SHARED,
        "+task.metrics.own._target_=named_losses.OwnAccuracy",
        "best.metric=val/own",
        "best.mode=max",
    )
    (tmp_path / "named_losses.py").write_text(Path(f"{named_losses.__file__}").read_text())
    run_on_ranks(2, tmp_path, [("train", "name=ranks", "patience=1", *words)])
    ranks, alone = tmp_path / "outputs" / "ranks", train(*words, "patience=1", name="alone")
    assert summary(ranks)["status"] == "finished"
    assert "val/own: each rank has another value" in (ranks / "train.log").read_text()
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(ranks)[name], value, rtol=1e-4, atol=1e-6)
