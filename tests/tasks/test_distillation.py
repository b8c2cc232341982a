"""Distillation: the losses of the papers, eager and compiled, and a teacher that does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from marks import slow
from run_folders import assert_same_state, rows, summary, training, weights
from torch import nn
from training_runs import Train, whole_and_resumed

from hydrant import cli
from hydrant.batch import Batch
from hydrant.tasks import Distillation

SCOPES = [
    ("task", 1),
    *(pytest.param(*way, marks=pytest.mark.slow) for way in (("model", 1), ("model_and_loss", 2))),
]
SHORT = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=3", "save_every=3")
TAUGHT = ("task=distillation", "task.teacher.model.hidden=[32]", "task.teacher.path=outputs/teacher")


def make_task(loss: Any, temperature: float = 3.0, share: float = 0.25) -> Distillation:
    torch.manual_seed(0)
    student, teacher = nn.Linear(5, 4), nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5))
    return Distillation(
        student, teacher=teacher, loss=loss, temperature=temperature, share=share, layers=[], input_shape=[5],
        metrics={},
    )  # fmt: skip


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


@pytest.mark.parametrize(("scope", "graphs"), SCOPES)
def test_a_compiled_loss_equals_the_eager_one(scope: str, graphs: int, train: Train) -> None:
    train(*SHORT, "model.hidden=[32]", name="teacher")
    eager = rows(train(*SHORT, *TAUGHT, name="eager"))
    compiled = rows(train(*SHORT, *TAUGHT, "compile=aot_eager", f"compile.scope={scope}", name="compiled"))
    assert compiled[-1]["compile/graphs"] == graphs
    for one, other in zip(eager, compiled, strict=True):
        for key in one.keys() & other.keys():
            assert one[key] == pytest.approx(other[key], abs=1e-5)


class Blocks(nn.Module):
    """A model with named layers for images (B, 2, 4, 4)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.Conv2d(width, width, 1))
        self.head = nn.Linear(width, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(inputs).mean(dim=(2, 3)))


@pytest.mark.parametrize("width", [4, 6])
def test_the_feature_loss_is_the_mean_squared_difference(width: int) -> None:
    torch.manual_seed(0)
    student, teacher = Blocks(width), Blocks(6)
    names = set(student.state_dict())
    task = Distillation(
        student, teacher=teacher, loss="features", temperature=1.0, share=0.25, input_shape=[2, 4, 4], metrics={},
        layers=[("blocks.0", "blocks.1"), ("head", "head")],
    )  # fmt: skip
    batch = Batch(torch.randn(5, 2, 4, 4), torch.arange(5) % 3)
    outcome = task(batch)
    features = student.blocks[0](batch.inputs)
    targets = teacher.blocks(batch.inputs)
    if width != 6:  # a 1x1 convolution
        features = torch.einsum("bchw,dc->bdhw", features, task.distance.projections[0].weight)
    first, second = (
        ((features - targets) ** 2).mean(),
        ((student(batch.inputs) - teacher(batch.inputs)) ** 2).mean(),
    )
    torch.testing.assert_close(outcome.measurements["distillation"], ((first + second) / 2).detach())
    outcome.total_loss().backward()
    assert all(parameter.grad is None for parameter in task.teacher.parameters())
    assert all(parameter.grad is not None for parameter in task.distance.parameters())
    assert set(student.state_dict()) == names
    assert not any(hasattr(module, "captured") for module in task.modules())


FEATURES = (*TAUGHT, "task.loss=features", "task.layers=[[hidden.0,hidden.0],[classifier,classifier]]")


@pytest.mark.slow
@pytest.mark.parametrize(("scope", "graphs"), SCOPES)
def test_a_compiled_feature_loss_equals_the_eager_one(scope: str, graphs: int, train: Train) -> None:
    train(*SHORT, "model.hidden=[32]", name="teacher")
    ema = ("averaging=ema", "averaging.decay=0.5", "compile.evaluation=true")
    eager = rows(train(*SHORT, *FEATURES, *ema[:2], name="eager"))
    folder = train(*SHORT, *FEATURES, "compile=aot_eager", f"compile.scope={scope}", *ema, name="compiled")
    compiled = rows(folder)
    assert compiled[-1]["compile/graphs"] <= 3 * graphs  # of training; of evaluation, of either model
    assert summary(folder)["compile"]["graph_breaks"] == summary(folder)["compile"]["recompiles"] == 0
    for one, other in zip(eager, compiled, strict=True):
        for key in one.keys() & other.keys():
            assert one[key] == pytest.approx(other[key], abs=1e-5)
    assert rows(folder)[-1]["train/distillation"] < rows(folder)[1]["train/distillation"]


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch.export 2.11 warns
def test_a_run_with_a_feature_loss_resumes_exactly_and_exports_only_the_student(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*SHORT, "model.hidden=[32]", name="teacher")
    whole, half = whole_and_resumed(train, monkeypatch, (*SHORT, *FEATURES), 4)
    assert rows(whole) == rows(half)
    assert_same_state(weights(whole), weights(half))
    one, other = (training(f)["task"] for f in (whole, half))
    assert_same_state(one, other)
    assert one["distance.projections.0.weight"].shape == (32, 16)
    assert weights(whole).keys() == weights(train(*SHORT, name="plain")).keys()
    assert cli.main(["export", str(whole), "--format", "torch_export"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("task.teacher.path=nowhere",), "task.teacher.path: nowhere"),
        (("task.loss=l1",), "task.loss: unknown value 'l1'"),
        (("task.loss=features",), "task.layers: needs pairs of layers"),
        (
            ("task.loss=features", "task.layers=[[hiden,hidden]]"),
            "task.layers: unknown layer of the student 'hiden'; did you mean 'hidden'",
        ),
        (
            ("task.loss=features", "task.layers=[[hidden.0,stages]]", "model@task.teacher.model=convnet"),
            "task.layers: hidden.0 returns [16] for a sample, the teacher's stages [128",
        ),
        *slow(
            (("task.temperature=0",), "task.temperature: needs a number above 0, not 0"),
            (("task.share=1.5",), "task.share: needs a number from 0 to 1, not 1.5"),
            (("task.loss=features", "task.layers=[[hidden]]"), "task.layers: needs "),
            (
                ("task.layers=[[hidden,hidden]]",),
                "task.layers: task.loss=kl uses no layers; use task.loss=features",
            ),
            (
                ("task.loss=features", "task.layers=[[hidden.0.1,hiden]]"),
                "task.layers: unknown layer of the teacher 'hiden'",
            ),
            (
                ("task.loss=features", "task.layers=[[hidden.0,widths]]", "model@task.teacher.model=convnet"),
                "task.layers: unknown layer of the teacher 'widths'",
            ),
        ),
    ],
)
def test_wrong_settings_are_rejected(
    words: tuple[str, ...], message: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *SHORT, "task=distillation", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(workdir.iterdir())
