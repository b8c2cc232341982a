"""A student and its frozen teacher: the loss of the paper, wherever it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checks import assert_same_state, rows, weights
from torch import nn

from hydrant import cli
from hydrant.batch import Batch
from hydrant.tasks import Distillation

Train = Callable[..., Path]
SHORT = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=3", "save_every=3")
TAUGHT = ("task=distillation", "task.teacher.model.hidden=[32]", "task.teacher.path=outputs/teacher")


def task(loss: Any, temperature: float = 3.0, share: float = 0.25) -> Distillation:
    torch.manual_seed(0)
    student, teacher = nn.Linear(5, 4), nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5))
    return Distillation(student, teacher=teacher, loss=loss, temperature=temperature, share=share, metrics={})


@pytest.mark.parametrize("loss", ["kl", "mse"])
def test_the_loss_is_the_paper_s(loss: Any) -> None:
    own = task(loss)
    batch = Batch(torch.randn(7, 5), torch.arange(7) % 4)
    outcome = own(batch)
    student, taught = own.model(batch.inputs), own.teacher[0](batch.inputs)  # no dropout in the teacher
    p, q = (taught / 3).softmax(dim=1), (student / 3).softmax(dim=1)
    distance = (p * (p / q).log()).sum(dim=1).mean() * 9 if loss == "kl" else ((student - taught) ** 2).mean()
    torch.testing.assert_close(outcome.losses["distillation"], 0.25 * distance)
    torch.testing.assert_close(
        outcome.losses["cross_entropy"], 0.75 * F.cross_entropy(student, batch.targets)
    )
    outcome.total_loss().backward()
    assert all(parameter.grad is None for parameter in own.teacher.parameters())
    own.train()
    assert own.training
    assert not own.teacher.training


def test_a_teacher_stays_as_it_was_trained(train: Train) -> None:
    teacher = weights(train(*SHORT, "model.hidden=[32]", name="teacher"))
    folder = train(*SHORT, *TAUGHT, name="student")
    state = torch.load(folder / "checkpoints" / "last" / "training.pt", weights_only=True)["task"]
    assert_same_state({k.removeprefix("teacher."): v for k, v in state.items()}, dict(teacher))
    assert 0 <= rows(folder)[-1]["val/agreement"] <= 1


@pytest.mark.parametrize(("scope", "graphs"), [("task", 1), ("model", 1), ("model_and_loss", 2)])
def test_the_loss_may_be_in_the_graph_apart_or_outside(scope: str, graphs: int, train: Train) -> None:
    train(*SHORT, "model.hidden=[32]", name="teacher")
    eager = rows(train(*SHORT, *TAUGHT, name="eager"))
    compiled = rows(train(*SHORT, *TAUGHT, "compile=aot_eager", f"compile.scope={scope}", name="compiled"))
    assert compiled[-1]["compile/graphs"] == graphs
    for one, other in zip(eager, compiled, strict=True):
        for key in one.keys() & other.keys():
            assert one[key] == pytest.approx(other[key], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("task.teacher.path=nowhere",), "task.teacher.path: nowhere"),
        (("task.temperature=0",), "task.temperature: needs a number above 0, not 0"),
        (("task.share=1.5",), "task.share: needs a number from 0 to 1, not 1.5"),
        (("task.loss=l1",), "task.loss: unknown value 'l1'"),
    ],
)
def test_what_cannot_be_is_refused(
    words: tuple[str, ...], told: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *SHORT, "task=distillation", *words]) == 2
    assert told in capsys.readouterr().err
    assert not list(workdir.iterdir())
