"""What a task carries from update to update: the weights of plain loops, at any division, and after a resume."""

from pathlib import Path

import carrying
import pytest
import torch
from ranks import run_on_ranks
from run_folders import assert_same_state, rows, training, weights
from training_runs import Train, interrupt_at

import hydrant
from hydrant.training.prepare.build import prepare

BASE = ("tracker=local", "allow_targets=[carrying]", "~model.hidden", "~model.dropout", "duration=10", "log_every=3",
        "eval_every=3", "save_every=3", "task=supervised", "~task.loss", "~task.loss_of_batch", "scheduler=constant",
        "optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.weight_decay=0")  # fmt: skip
WORDS = (*BASE, "data=stream", "data.num_workers=0", "data.train._target_=carrying.Pieces", "data.num_samples=56",
         "data.val._target_=carrying.lanes", "data.num_classes=12", "data.input_shape=[1]", "global_batch_size=8",
         "model._target_=carrying.WordModel", "task._target_=carrying.WordTask", "optimizer.lr=2",
         "max_grad_norm=0.25")  # fmt: skip
MOCO = (*BASE, "global_batch_size=16", "model._target_=carrying.make_encoders", "task._target_=carrying.Moco",
        "optimizer.lr=0.5")  # fmt: skip


def assert_near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.extension  # the data
def test_a_program_that_carries_a_state_is_the_plain_loop_at_any_division(
    train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "carrying.py").write_text(Path(f"{carrying.__file__}").read_text())
    model, plan = prepare(hydrant.compose(WORDS)).task.model, prepare(hydrant.compose(MOCO))
    loss = carrying.train_words(model, 10)
    carrying.train_moco(plan.task, plan.data.train.stream(plan.spec), 10)
    whole, divided = train(*WORDS, name="whole"), (*WORDS, "micro_batch_size=2")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        train(*WORDS, name="half", status=130)
        train(*divided, name="divided", status=130)
    resumed = train(*WORDS, name="half")
    assert_near(weights(whole), dict(model.state_dict()))
    assert rows(whole)[-1]["val/loss"] == pytest.approx(float(loss), abs=1e-6)
    assert_same_state([weights(whole), training(whole)], [weights(resumed), training(resumed)])
    commands = ("name=divided", *divided), ("name=queue", *MOCO, "micro_batch_size=4")
    run_on_ranks(2, workdir, [("train", *words) for words in commands])
    assert_near(weights(workdir / "outputs" / "divided"), weights(whole))
    queue = workdir / "outputs" / "queue"
    assert_near(weights(queue), dict(plan.task.model.state_dict()))
    assert_near(training(queue)["task"], {"queue": plan.task.queue})
