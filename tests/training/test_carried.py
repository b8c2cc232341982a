"""What a task carries from update to update: the weights of plain loops, at any division, and after a resume."""

from pathlib import Path

import carrying
import pytest
import torch
import torch.nn.functional as F
from example_projects import use_example
from ranks import run_on_ranks
from run_folders import assert_same_state, rows, training, weights
from training_runs import Train, interrupt_at, seeded_batches

import hydrant
from examples.loops import lstm
from hydrant.training.prepare.build import prepare

WORDS = ("tracker=local", "experiment=lstm", "duration=10", "log_every=3", "eval_every=3", "save_every=3")
MOCO = ("tracker=local", "allow_targets=[carrying]", "~model.hidden", "~model.dropout", "duration=10", "log_every=3",
        "eval_every=3", "save_every=3", "task=supervised", "~task.loss", "~task.loss_of_batch", "scheduler=constant",
        "optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.weight_decay=0",
        "global_batch_size=16", "model._target_=carrying.make_encoders", "task._target_=carrying.Moco",
        "optimizer.lr=0.5")  # fmt: skip


def assert_near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.extension  # the data
def test_a_program_that_carries_a_state_is_the_plain_loop_at_any_division(
    train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (use_example("loops", monkeypatch) / "lstm.py", Path(f"{carrying.__file__}")):
        (workdir / file.name).write_text(file.read_text())
    words, plan = prepare(hydrant.compose(WORDS)), prepare(hydrant.compose(MOCO))
    model, (tokens, targets) = words.task.model, lstm.lanes().tensors
    lstm.plain_loop(model, seeded_batches(words))
    loss = F.cross_entropy(model(tokens)[0].flatten(0, 1), targets.flatten()).item()
    carrying.train_moco(plan.task, plan.data.train.stream(plan.spec), 10)
    whole, divided = train(*WORDS, name="whole"), (*WORDS, "micro_batch_size=2")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        train(*WORDS, name="half", status=130)
        train(*divided, name="divided", status=130)
    resumed = train(*WORDS, name="half")
    assert_near(weights(whole), dict(model.state_dict()))
    assert rows(whole)[-1]["val/loss"] == pytest.approx(loss, abs=1e-6)
    assert_same_state([weights(whole), training(whole)], [weights(resumed), training(resumed)])
    commands = ("name=divided", *divided), ("name=queue", *MOCO, "micro_batch_size=4")
    run_on_ranks(2, workdir, [("train", *words) for words in commands])
    assert_near(weights(workdir / "outputs" / "divided"), weights(whole))
    queue = workdir / "outputs" / "queue"
    assert_near(weights(queue), dict(plan.task.model.state_dict()))
    assert_near(training(queue)["task"], {"queue": plan.task.queue})
