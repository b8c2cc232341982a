"""Optimizers that take turns: the weights of plain loops, on ranks, after a resume, and with a loss scaler."""

from pathlib import Path

import adversarial
import pytest
from ranks import run_on_ranks
from run_folders import assert_close_rows, assert_same_state, rows, training, weights
from training_runs import Train, whole_and_resumed

import hydrant
from hydrant.training.prepare.build import prepare

BASE = ("tracker=local", "allow_targets=[adversarial]", "~model.hidden", "~model.dropout", "duration=12", "log_every=4",
        "model._target_=adversarial.make_models", "eval_every=null", "save_every=4", "global_batch_size=16",
        "task=supervised", "task._target_=adversarial.Gan", "~task.loss", "~task.loss_of_batch", "optimizer=adam",
        "optimizer.fused=false", "scheduler=constant", "optimizer.lr=1e-3",
        "+optimizers.critic={parts: [critic], losses: [critic]}",
        "+optimizers.generator={parts: [generator], losses: [generator]}")  # fmt: skip
DCGAN = (*BASE, "+task.is_wgan=false", "update_order=[[critic,generator]]")
WGAN_GP = (*BASE, "+task.is_wgan=true", "+model.is_normed=false",
           "update_order=[[critic],[critic],[critic],[critic],[critic,generator]]")  # fmt: skip


def losses(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k.startswith("train/")} for row in rows(folder)]


@pytest.mark.parametrize(("words", "every"), [(DCGAN, 1), (WGAN_GP, 5)])
def test_the_weights_are_those_of_the_authors_loops(
    words: tuple[str, ...], every: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = prepare(hydrant.compose(words))
    models = plan.task.model
    adversarial.plain_loop(models, plan.data.train.stream(plan.spec), 12, every=every)
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=7)
    assert_same_state(dict(models.state_dict()), weights(whole))
    assert_same_state([weights(whole), training(whole)], [weights(resumed), training(resumed)])
    assert rows(whole) == rows(resumed)
    for row in rows(whole)[every > 1 :]:  # the generator of WGAN-GP has no turn before the first log point
        assert row["train/loss"] == pytest.approx(row["train/critic"] + row["train/generator"])


def test_ranks_micro_batches_and_a_loss_scaler_change_rounding_only(train: Train, workdir: Path) -> None:
    (workdir / "adversarial.py").write_text(Path(f"{adversarial.__file__}").read_text())
    words = (*DCGAN, "micro_batch_size=8")
    one = train(*words, name="one")
    run_on_ranks(2, workdir, [("train", "name=two", *words)])
    assert_close_rows(one, workdir / "outputs" / "two")
    scaled = train(*words, "precision=fp16", "precision.init_scale=1e9", name="scaled")
    assert rows(scaled)[-1]["optim/num_skipped"]
    assert_close_rows(one, scaled, rel=0.02, abs=0.02, read=losses)


def test_a_single_optimizer_in_turn_is_no_turn_in_evaluation(train: Train) -> None:
    words = (
        *BASE,
        "+task.is_wgan=false",
        "eval_every=4",
        "~optimizers.critic",
        "optimizers.generator.parts=null",
    )
    alone = train(*words, "optimizers.generator.losses=null", "update_order=[[generator]]")
    assert {"val/critic", "val/generator"} < rows(alone)[-1].keys()
