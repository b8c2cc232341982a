"""A call with an argument that the interface does not have says what to write."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from marks import of_extension
from torch import nn

import hydrant

NO = "has no such argument"


def my_loss() -> None: ...


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        *of_extension(
            ({"loss": nn.MSELoss()}, "in the list of hydrant.compose, write task=regression"),
            ({"loss": my_loss}, "write task.loss._target_=my_loss task=supervised"),
            ({"lr": 0.1}, "in the list of hydrant.compose, write optimizer.lr=0.1"),
        ),
        ({"deterministic": True}, 'give it to the config: hydrant.compose(["deterministic=true"])'),
        ({"modle": nn.ReLU()}, "did you mean model=...?"),
        ({"dataset": (1, 2)}, "did you mean data=...?"),
    ],
)
def test_train_names_the_argument_or_the_key(arguments: dict[str, Any], remedy: str) -> None:
    [name] = arguments
    with pytest.raises(hydrant.ConfigError) as caught:
        hydrant.train({}, **arguments)
    assert str(caught.value).startswith(f"{name}: hydrant.train {NO}")
    assert remedy in caught.value.remedy
    assert caught.value.key == name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hydrant.compose(optimizer="sgd"), f'{NO}; give it to the config: hydrant.compose(["optimizer=sgd"])'),  # type: ignore[call-arg]
        (lambda: hydrant.load_run("x", allow_target=[]), f"{NO}; did you mean allow_targets=...?"),  # type: ignore[call-arg]
    ],
)  # fmt: skip
def test_each_function_answers(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(hydrant.ConfigError) as caught:
        call()
    assert message in str(caught.value)


def test_every_public_function_answers_and_shows_its_arguments() -> None:
    public = [getattr(hydrant, name) for name in dir(hydrant) if name[0].islower()]
    of_run = [hydrant.Run.model, hydrant.Run.evaluate]
    functions = [one for one in public if hasattr(one, "__wrapped__")] + of_run
    assert {one.__name__ for one in functions} >= {"compose", "train", "load_run", "model", "evaluate"}
    for function in functions:
        assert list(inspect.signature(function).parameters) != ["args", "kwargs"]
        with pytest.raises(hydrant.ConfigError, match=r"^seed: "):
            function(seed=1)
