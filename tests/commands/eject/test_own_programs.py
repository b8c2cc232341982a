"""Ejected files hold the source of the user's own parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ejected import check_equal, project, rows_of, run_program, unchanged_process
from training_runs import Train, UserModule

from hydrant import cli

__all__ = ["project", "unchanged_process"]
pytestmark = pytest.mark.usefixtures("unchanged_process")


def test_the_parts_of_a_new_project(project: Path) -> None:
    words = "hook=[] test_at_end=false allow_targets=[mine]"
    text = check_equal(f"experiment=first {words} duration=4 global_batch_size=32", project)
    assert not re.search(r"^ *(from|import) (hydrant|mine)", text, flags=re.MULTILINE)
    assert all(
        part in text for part in ("class Focal(Task)", "class Residual(nn.Module)", "def make_points(")
    )


@pytest.mark.slow
def test_the_test_of_a_new_project(project: Path, train: Train) -> None:
    words = (
        "experiment=first",
        "hook=[]",
        "allow_targets=[mine]",
        "duration=20",
        "tracker=local",
        "eval_every=3",
    )
    train(*words, name="long")
    assert cli.main(["eject", *words, "name=ejected", "--out", "run.py"]) == 0
    run_program(Path("run.py").read_text())
    rows = rows_of(Path("outputs/ejected"))
    assert rows == rows_of(Path("outputs/long"))
    assert "test/loss" in rows[-1]


HELPERS = """
import math

SCALE = math.sqrt(2)


def scaled(x):
    return SCALE * x
"""
PARTS = """
import torch
from torch import nn
from torch.utils.data import Dataset

from own_helpers import scaled


class Net(nn.Module):
    def __init__(self, *, width: int, depth: int = 1, gate: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.gate = nn.Linear(width, width) if gate else None
        self.last = nn.Linear(width, 2)

    def forward(self, x):
        x = scaled(self.first(x)).relu()  # a comment
        drawn = torch.rand(1)  # nothing reads it, but later numbers depend on it
        if self.gate is not None:
            x = x * self.gate(x).sigmoid()
        x = nn.functional.dropout(x, 0.1, self.training)
        return self.last(x)


def make_net(width: int) -> Net:
    return Net(width=width, gate=True)


class Points(Dataset):
    \"\"\"Noisy points of Python's numbers.\"\"\"

    def __init__(self, count: int, noise: float) -> None:
        self.points = torch.randn(count, 3, generator=torch.Generator().manual_seed(count))
        self.noise = noise

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int):
        point = self.points[index] + self.noise * torch.randn(3)
        return point.tolist(), int(self.points[index].sum() > 0)


short = lambda width: nn.Linear(3, 2)

try:
    LIMIT = 3
except ImportError:
    LIMIT = 4


class Limited(Net):
    def forward(self, x):
        return super().forward(x.clamp(max=LIMIT))
""".replace("point.tolist()", "point.double()")
DATA = (
    "data=dataset data.train._target_=copied_parts.Points +data.train.count=60 +data.train.noise=0.1 "
    "data.val._target_=copied_parts.Points +data.val.count=40 +data.val.noise=0.2 data.num_classes=2 "
    "data.input_shape=[3] allow_targets=[copied_parts] limit_train_samples=50 limit_val_samples=30"
)


@pytest.fixture
def parts(user_module: UserModule, workdir: Path) -> None:
    user_module("own_helpers", HELPERS)
    user_module("copied_parts", PARTS)
    options = workdir / "conf" / "model"
    options.mkdir(parents=True)
    for name in ("Net", "make_net", "short", "Limited"):
        (options / f"{name}.yaml").write_text(f"_target_: copied_parts.{name}\nwidth: 6\n")


@pytest.mark.parametrize(
    "words",
    [
        "model=Net data.num_workers=1",
        "model=make_net data.num_workers=0 micro_batch_size=8 averaging=ema",
    ],
)
def test_models_and_data_sets_with_helpers(words: str, parts: None, workdir: Path) -> None:
    text = check_equal(f"{DATA} {words}", workdir)
    assert "own_" not in text.partition("# The run.")[2]
    assert "# a comment" in text


def refusal(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message of `hydrant eject` with words that it refuses."""
    capsys.readouterr()
    assert cli.main(["eject", *words, "--out", "run.py"]) == 2
    assert not Path("run.py").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model=short", "model: copied_parts.short is a lambda"),
        ("model=Limited", "copied_parts defines LIMIT by a statement"),
    ],
)
def test_what_cannot_be_copied_is_refused_by_its_name(
    words: str, message: str, parts: None, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("data.num_workers=0", "global_batch_size=32")
    assert message in refusal(*DATA.split(), *sizes, *words.split(), capsys=capsys)


def test_a_part_of_a_script_or_a_notebook_is_refused_by_its_name(
    train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part, move = "__main__.Net", "move it into a module (a file that can be imported)"
    words = (f"model._target_={part}", "allow_targets=[__main__]")
    assert f"model: {part} is defined in a script or a notebook; {move}" in refusal(*words, capsys=capsys)
    file = (
        train("tracker=local", "duration=1") / "config.yaml"
    )  # as hydrant.train(config, model=Net()) leaves it
    saved = yaml.safe_load(file.read_text())
    saved["model"] = {"_target_": "hydrant.training.passed_model", "type": part, "structure": "0"}
    file.write_text(yaml.safe_dump(saved))
    message = refusal(str(file.parent), capsys=capsys)
    assert f"model: {part} was passed from Python" in message
    assert f"{move}, and name it in the config: model._target_=module.Net" in message


COLLECTIVES = """
import torch
import torch.distributed as dist
from torch import nn
from hydrant.batch import Outcome
from hydrant.tasks import Task

class Net(nn.Module):
    def __init__(self, *, input_shape, num_classes):
        super().__init__()
        self.layer = nn.Linear(64, num_classes)

    def forward(self, inputs):
        logits = self.layer(inputs.flatten(1))
        if not self.training:
            dist.all_reduce(torch.zeros(1))
        return logits
"""
TASK = """
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from hydrant.batch import Outcome
from hydrant.tasks import Task

class Sharing(Task):
    def forward(self, batch):
        logits = self.model(batch.inputs)
        dist.all_reduce(logits.detach().sum(0))
        loss = cross_entropy(logits, batch.targets)
        return Outcome({"loss": loss}, {}, logits.detach(), len(batch.targets))
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "model._target_=calling.Net ~model.hidden ~model.dropout",
            "model: its forward calls all_reduce at ",
        ),
        ("task=sharing", "task: its forward calls all_reduce at "),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_parts_that_call_collectives_are_refused(
    words: str,
    message: str,
    num_ranks: int,
    workdir: Path,
    user_module: UserModule,
    capsys: pytest.CaptureFixture[str],
) -> None:
    user_module("calling", COLLECTIVES)
    user_module("calling_task", TASK)
    option = workdir / "conf" / "task" / "sharing.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: calling_task.Sharing\n_partial_: true\nmetrics: {}\n")
    all_words = (
        *words.split(),
        "allow_targets=[calling,calling_task]",
        f"parallel.num_processes={num_ranks}",
    )
    text = refusal(*all_words, "best.metric=val/loss", "best.mode=min", capsys=capsys)
    assert message in text
    assert "train with hydrant train" in text
