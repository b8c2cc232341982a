"""Distillation: the losses of the papers, eager and compiled, and a teacher that does not change."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from marks import slow
from run_folders import assert_same_state, rows, training, weights
from torch import nn
from training_runs import Train

from hydrant import cli
from hydrant.batch import Batch
from hydrant.config.flat import with_added_keys
from hydrant.extensions.distillation import Distillation

SCOPES = [("task", 1), *slow(("model", 1), ("model_and_loss", 2))]
SHORT = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=3", "save_every=3")
TAUGHT = ("task=distillation", "task.teacher.model.hidden=[32]", "task.teacher.path=outputs/teacher")


def make_task(loss: Any, temperature: float = 3.0, share: float = 0.25) -> Distillation:
    torch.manual_seed(0)
    student, teacher = nn.Linear(5, 4), nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5))
    return Distillation(student, teacher=teacher, loss=loss, temperature=temperature, share=share, metrics={})


@pytest.mark.parametrize("loss", ["kl", "mse"])
def test_the_loss_equals_the_paper_s(loss: Any) -> None:
    task = make_task(loss)
    batch = Batch(torch.randn(7, 5), torch.arange(7) % 4)
    outcome = task(batch)
    student, teacher = task.model(batch.inputs), task.teacher[0](batch.inputs)  # no dropout in the teacher
    p, q = (teacher / 3).softmax(dim=1), (student / 3).softmax(dim=1)
    distance = (
        (p * (p / q).log()).sum(dim=1).mean() * 9 if loss == "kl" else ((student - teacher) ** 2).mean()
    )
    entropy = F.cross_entropy(student, batch.targets)
    torch.testing.assert_close(outcome.total_loss(), 0.75 * entropy + 0.25 * distance)
    logged = outcome.scalars()  # the parts without their weights
    torch.testing.assert_close(logged["cross_entropy"], entropy.detach())
    torch.testing.assert_close(logged["distillation"], distance.detach())
    outcome.total_loss().backward()
    assert all(parameter.grad is None for parameter in task.teacher.parameters())
    task.train()
    assert task.training
    assert not task.teacher.training


def test_the_teacher_does_not_change(train: Train) -> None:
    teacher = weights(train(*SHORT, "model.hidden=[32]", name="teacher"))
    folder = train(*SHORT, *TAUGHT, name="student")
    state = training(folder)["task"]
    assert_same_state({k.removeprefix("teacher."): v for k, v in state.items()}, dict(teacher))
    assert 0 <= rows(folder)[-1]["val/agreement"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("scope", "graphs"), SCOPES)
def test_a_compiled_loss_equals_the_eager_one(scope: str, graphs: int, train: Train) -> None:
    train(*SHORT, "model.hidden=[32]", name="teacher")
    eager = rows(train(*SHORT, *TAUGHT, name="eager"))
    compiled = rows(train(*SHORT, *TAUGHT, "compile=aot_eager", f"compile.scope={scope}", name="compiled"))
    assert compiled[-1]["compile/graphs"] == graphs
    for one, other in zip(eager, compiled, strict=True):
        for key in one.keys() & other.keys():
            assert one[key] == pytest.approx(other[key], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("task.teacher.path=nowhere",), "task.teacher.path: nowhere"),
        (("task.loss=l1",), "task.loss: unknown value 'l1'"),
        *slow(
            (("task.temperature=0",), "task.temperature: needs a number above 0, not 0"),
            (("task.share=1.5",), "task.share: needs a number from 0 to 1, not 1.5"),
        ),
    ],
)
def test_wrong_settings_are_rejected(
    words: tuple[str, ...], message: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *SHORT, "task=distillation", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(workdir.iterdir())


def test_a_run_of_an_earlier_version_has_keys_that_train_nothing() -> None:
    task = {"_target_": "hydrant.extensions.distillation.Distillation", "loss": "kl"}
    assert with_added_keys({"task": task | {"layers": [], "input_shape": [4]}})["task"] == task
