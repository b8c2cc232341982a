"""Equations of modular arithmetic are true, and each pair is in one part."""

from typing import Any

import pytest
import torch

from examples.papers.modular import modular_arithmetic
from hydrant.data import InMemorySource
from hydrant.errors import ConfigError
from hydrant.extensions.language.token_data import IGNORED


def made(**changes: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the inputs and targets to train on, and those to validate on."""
    p = changes.get("modulus", 7)
    options: dict[str, Any] = {
        "input_shape": [4], "num_classes": p + 2, "vocab_size": p + 2, "sequence_length": 4, "operation": "add",
        "modulus": p, "train_ratio": 0.5, "split_seed": 0,
    }  # fmt: skip
    data = modular_arithmetic(**options | changes)
    tensors = list[torch.Tensor]()
    for source in (data.train, data.val):
        assert isinstance(source, InMemorySource)
        assert isinstance(source.inputs, torch.Tensor)
        assert isinstance(source.targets, torch.Tensor)
        tensors += [source.inputs, source.targets]
    return tensors[0], tensors[1], tensors[2], tensors[3]


@pytest.mark.parametrize(
    ("operation", "modulus"), [("add", 7), ("sub", 6), ("mul", 9), ("div", 7), ("div", 2), ("add", 2)]
)
def test_all_equations_are_true_and_in_one_part(operation: str, modulus: int) -> None:
    train, train_targets, val, val_targets = made(operation=operation, modulus=modulus)
    equations = torch.cat([train, val])
    a, sign, b, equals = equations.unbind(1)
    targets = torch.cat([train_targets, val_targets])
    assert (targets[:, :-1] == IGNORED).all()
    c = targets[:, -1]
    assert set(sign.tolist()) == {modulus}
    assert set(equals.tolist()) == {modulus + 1}
    left, right = {"add": (a + b, c), "sub": (a, b + c), "mul": (a * b, c), "div": (a, b * c)}[operation]
    assert torch.equal(left % modulus, right % modulus)
    assert c.min() >= 0
    assert c.max() < modulus
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    every = {(x, y) for x in range(modulus) for y in range(int(operation == "div"), modulus)}
    assert (set(pairs), len(pairs)) == (every, len(every))
    assert len(train) == round(len(every) / 2)


def test_the_parts_depend_on_the_split_seed_and_the_ratio() -> None:
    assert torch.equal(made()[0], made()[0])
    assert not torch.equal(made()[0], made(split_seed=1)[0])
    few, many = made(train_ratio=0.1)[0], made(train_ratio=0.9)[0]
    assert (len(few), len(many)) == (5, 44)
    assert torch.equal(few, many[:5]), "a larger part holds the smaller one"


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("operation", {"operation": "pow"}),
        ("modulus", {"operation": "div", "modulus": 9}),
        ("vocab_size", {"vocab_size": 99}),
        ("train_ratio", {"train_ratio": 0.0}),
        ("train_ratio", {"train_ratio": 1.0}),
        ("train_ratio", {"train_ratio": 1e-6}),
        ("train_ratio", {"train_ratio": float("inf")}),
        ("sequence_length", {"sequence_length": 3}),
        ("num_classes", {"num_classes": 7}),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_key(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.{key}: "):
        made(**changes)
