"""A task that fails on a few samples: the error names the line, the sizes and the types."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from trials import trials_of

from hydrant.batch import Batch, Outcome
from hydrant.data import Data, dataset_source
from hydrant.errors import ConfigError
from hydrant.tasks import Classification, Supervised, Task
from hydrant.training.passed_objects import nodes_of, passed_task, passing
from hydrant.training.prepare.rehearsal import dry_forward


class Items(Dataset[Any]):
    """Four samples that a function makes of the input and the class."""

    def __init__(self, item: Callable[[Tensor, int], Any]):
        self.item = item

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.item(torch.full((4,), float(index)), index % 2)


def pair(inputs: Tensor, label: int) -> Any:
    return inputs, label


def fields(inputs: Tensor, label: int) -> Any:
    return {"pixels": inputs, "labels": label}


class Other(nn.Module):
    """Returns a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(inputs), inputs


class Masked(nn.Module):
    """Takes two arguments."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return inputs * mask


class WithBugs(nn.Module):
    """Has errors of its own, whatever the data are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, inputs: Any) -> Any:
        return self.inner(inputs) if isinstance(inputs, Tensor) else inputs["pixels"] + inputs["missing"]


class OwnTask(Task):
    """Takes what the model returns, and has an error of its own."""

    def forward(self, batch: Batch) -> Outcome:
        first, _ = self.model(batch.inputs)
        return Outcome({"loss": first.mean() / []}, {}, (), 1)


def refusal(model: nn.Module, item: Any, *, target: str | None = None, task: Any = None) -> str:
    source = dataset_source(Items(item), target=target)
    task = task or Classification(model, label_smoothing=0, metrics={})
    with pytest.raises(ConfigError) as caught:
        dry_forward(trials_of(task, Data(source, source)))
    return str(caught.value)


def test_inputs_that_the_model_does_not_take_are_named() -> None:
    message = refusal(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)), pair)
    form = "shape [4, 4] and type torch.float32"
    of_targets = "targets of shape [4] and type torch.int64"
    assert message.startswith(
        f"model: fails in a trial of an evaluation, on inputs of {form} and {of_targets}: RuntimeError: "
    )
    assert "mat1 and mat2 shapes cannot be multiplied (4x4 and 3x16)" in message
    assert "missing 1 required positional argument: 'mask'" in refusal(Masked(), pair)
    assert f"on inputs of type dict with {form}" in refusal(nn.Linear(4, 2), fields, target="labels")


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_inputs_of_another_type_than_the_weights_are_named_by_it(dtype: torch.dtype) -> None:
    message = refusal(nn.Sequential(nn.Linear(4, 2)), lambda inputs, label: (inputs.to(dtype), label))
    assert f"on inputs of shape [4, 4] and type {dtype} " in message
    assert "dtype" in message.partition(str(dtype))[2]


def test_an_error_of_user_code_keeps_its_line() -> None:
    """Of a model on dicts, of the call of an inner layer, and of a task that takes a tuple."""
    assert "KeyError: 'missing' (at test_explain_failure.py:" in refusal(WithBugs(), fields)
    assert "return self.inner(inputs) if" in refusal(WithBugs(), pair)
    assert 'return Outcome({"loss": first.mean() / []}' in refusal(Other(), pair, task=OwnTask(Other()))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_for_other_shapes_is_explained_unless_torch_broadcasts_them() -> None:
    def supervised(num_outputs: int) -> Supervised:
        return Supervised(nn.Linear(4, num_outputs), loss=nn.MSELoss(), metrics={})

    message = refusal(nn.Linear(4, 3), pair, task=supervised(3))
    assert message.startswith("task: fails in a trial of an evaluation, on inputs of shape [")
    assert "and targets of shape [4] and type torch.int64: RuntimeError: " in message
    source = dataset_source(Items(pair))
    assert dry_forward(trials_of(supervised(1), Data(source, source))).outcome.scalars()["loss"].isfinite()


def test_a_task_that_needs_more_than_the_model_is_refused() -> None:
    words = r"^task: .*Supervised is called with the model alone: .*'loss'; pass functools"
    with pytest.raises(ConfigError, match=words), passing({"task": partial(Supervised, metrics={})}):
        passed_task(nn.Linear(4, 2), type="Supervised")
    with pytest.raises(ConfigError, match=r"not a CrossEntropyLoss; for a loss, pass functools.partial\("):
        nodes_of({"task": nn.CrossEntropyLoss()})
