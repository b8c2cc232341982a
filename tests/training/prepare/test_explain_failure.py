"""A task that fails on a few samples: the error names the layer, the sizes and what the user can change."""

from __future__ import annotations

from collections.abc import Callable
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
from hydrant.training.passed_objects import nodes_of, passing
from hydrant.training.prepare.dry_run import dry_forward


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
    """Returns a pair, or takes a dict."""

    def __init__(self, *, takes_dict: bool = False):
        super().__init__()
        self.layer, self.takes_dict = nn.Linear(4, 2), takes_dict

    def forward(self, inputs: Any) -> Any:
        return self.layer(inputs["pixels"]) if self.takes_dict else (self.layer(inputs), inputs)


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


def refusal(
    model: nn.Module, item: Any, *, target: str | None = None, task: Any = None, given: str = ""
) -> str:
    source = dataset_source(Items(item), target=target)
    task = task or Classification(model, label_smoothing=0, metrics={})
    data = Data(source, source)
    objects = {"data": data, "model": model}
    with pytest.raises(ConfigError) as caught, passing({name: objects[name] for name in given.split()}):
        dry_forward(trials_of(task, data))
    return str(caught.value)


@pytest.mark.parametrize("given", ["", "model data"])
def test_a_layer_of_the_wrong_size_is_named_with_both_sizes(given: str) -> None:
    message = refusal(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)), pair, given=given)
    layer = "its layer 0, Linear(in_features=3, out_features=16, bias=True), gets a tensor of shape [4, 4]"
    assert message.startswith(f"model: fails in a trial of an evaluation, on inputs of shape [4, 4]: {layer}")
    remedy = (
        "Change its sizes, or the data" if given else "Choose another model or other data, or set its sizes"
    )
    assert remedy in message
    assert "its layer 1, Linear(in_features=8," in refusal(
        nn.Sequential(nn.Linear(4, 16), nn.Linear(8, 2)), pair
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_inputs_of_another_type_than_the_weights_are_named_by_it(dtype: torch.dtype) -> None:
    message = refusal(nn.Sequential(nn.Linear(4, 2)), lambda inputs, label: (inputs.to(dtype), label))
    assert f"gets a tensor of shape [4, 4] and type {dtype}: " in message
    assert message.endswith("Convert the inputs to the type of its weights: inputs.to(torch.float32)")


def test_samples_that_are_dicts_are_explained_to_who_passes_them_and_to_who_names_them() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    named = refusal(model, fields)
    assert named.startswith(
        "data: the samples are dicts with the keys pixels, labels and without a target, and the"
    )
    assert named.endswith("write data.target=labels")
    passed = refusal(model, fields, given="data")
    assert passed.endswith('hydrant.data.dataset_source(train_set, target="labels")')
    assert refusal(Other(takes_dict=True), fields, given="data").endswith('target="labels")')
    assert "Return a pair (input, target) in __getitem__" in refusal(model, fields, target="labels")


def test_what_a_model_returns_and_takes_is_explained() -> None:
    message = refusal(Other(), pair)
    assert "outputs of the model of type tuple" in message
    assert message.endswith(
        "Return a tensor alone from the model's forward, or write a task that takes its outputs"
    )
    assert "A model gets one argument, the inputs of a batch" in refusal(Masked(), pair, given="model")


@pytest.mark.parametrize("given", ["", "model data"])
def test_an_error_of_user_code_keeps_its_line_and_no_other_cause_is_named(given: str) -> None:
    """Of a model on dicts without a target, of the call of an inner layer, and of a task that takes a tuple."""
    on_dicts = refusal(WithBugs(), fields, given=given)
    assert "KeyError: 'missing' (at test_explain_failure.py:" in on_dicts
    inner = refusal(WithBugs(), pair, given=given)
    assert "return self.inner(inputs) if" in inner
    in_task = refusal(Other(), pair, task=OwnTask(Other()), given=given)
    assert 'return Outcome({"loss": first.mean() / []}' in in_task
    for message, remedy in (
        (on_dicts, "Correct that line"),
        (inner, "Correct that line"),
        (in_task, "Check "),
    ):
        assert "has the traceback). " + remedy in message


def test_a_loss_for_other_shapes_is_explained_by_both_shapes() -> None:
    model = nn.Linear(4, 2)
    message = refusal(model, pair, task=Supervised(model, loss=nn.MSELoss(), metrics={}))
    assert message.startswith(
        "task: fails outside the model in a trial of an evaluation, on targets of shape [4] and outputs of the model "
        "of shape [4, 2]"
    )


def test_a_task_that_needs_more_than_the_model_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^task: .*Supervised is called with the model alone: .*'loss'; pass functools"
    ):
        nodes_of({"task": Supervised})
    with pytest.raises(ConfigError, match=r"not a CrossEntropyLoss; for a loss, pass functools.partial\("):
        nodes_of({"task": nn.CrossEntropyLoss()})
