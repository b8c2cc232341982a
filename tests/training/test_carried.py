"""What a task carries from update to update: the weights of plain loops, at any division, and after a resume."""

import copy
from pathlib import Path

import carrying
import pytest
import torch
import torch.nn.functional as F
from example_projects import use_example
from ranks import run_on_ranks
from run_folders import assert_same_state, rows, training, weights
from torch.utils.data import TensorDataset
from training_runs import Train, interrupt_at, seeded_batches

import hydrant
from examples.loops import lstm
from hydrant.batch import Batch, Outcome
from hydrant.errors import ConfigError
from hydrant.tasks import Task
from hydrant.training.prepare.build import prepare

WORDS = ("tracker=local", "experiment=lstm", "duration=10", "log_every=3", "eval_every=3", "save_every=3")
MOCO = ("tracker=local", "allow_targets=[carrying]", "~model.hidden", "~model.dropout", "duration=10", "log_every=3",
        "eval_every=3", "save_every=3", "task=supervised", "~task.loss", "~task.loss_of_batch", "scheduler=constant",
        "optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.weight_decay=0",
        "global_batch_size=16", "model._target_=carrying.make_encoders", "task._target_=carrying.Moco",
        "optimizer.lr=0.5")  # fmt: skip


def assert_near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


class Remembering(Task):
    """Carries its last outputs and those before them, and compares new ones with both."""

    loss_of_batch = True

    def outputs(self, batch: Batch) -> torch.Tensor:
        INPUTS.append(batch.inputs)
        return self.model(batch.inputs)

    def assess(self, outputs: torch.Tensor, batch: Batch) -> Outcome:
        last, before = self.carried or [torch.zeros_like(outputs)] * 2
        loss = (outputs - batch.targets).square().mean() + 0.5 * (outputs - before).square().mean()
        return Outcome({"loss": loss}, {}, outputs.detach(), len(outputs), (outputs.detach(), last))


class Transposed(Remembering):
    def assess(self, outputs: torch.Tensor, batch: Batch) -> Outcome:
        return super().assess(outputs, batch)._replace(carried=outputs.T)


INPUTS = list[torch.Tensor]()
"""Those of the calls of `outputs`."""


def test_a_state_may_hold_the_one_before_it_and_a_loss_of_a_whole_batch_sees_the_whole(workdir: Path) -> None:
    inputs = torch.arange(8.0)[:, None] / 4
    data, model = TensorDataset(inputs, inputs.sin()), torch.nn.Linear(1, 1)
    words = ("tracker=local", "duration=5", "global_batch_size=8", "eval_every=null", "scheduler=constant",
             "optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.weight_decay=0",
             "optimizer.lr=0.1")  # fmt: skip

    def trained(size: str) -> dict[str, torch.Tensor]:
        config = hydrant.compose([*words, f"name=by-{size}", f"micro_batch_size={size}"])
        return (
            hydrant.train(config, model=model, data=(data, data), task=Remembering).model("last").state_dict()
        )

    whole = trained("null")
    batches = [batch for batch in INPUTS if len(batch) == 8][-5:]
    plain, states = copy.deepcopy(model), [torch.zeros(8, 1)] * 2
    for batch in batches:
        outputs = plain(batch)
        loss = (outputs - batch.sin()).square().mean() + 0.5 * (outputs - states[-2]).square().mean()
        loss.backward()
        states.append(outputs.detach())
        for parameter in plain.parameters():
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None
    assert_near(whole, plain.state_dict())
    assert_near(trained("2"), plain.state_dict())
    config = hydrant.compose([*words, "name=transposed"])
    with pytest.raises(ConfigError, match=r"task: carries a tensor of shape \[1, 2\] from 2 samples"):
        hydrant.train(config, model=model, data=(data, data), task=Transposed)


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
