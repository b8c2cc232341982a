"""MNIST-1D is what PyPI's package `mnist1d` makes."""

from typing import Any

import pytest
import torch

from examples.papers.signals import mnist1d
from hydrant.data import InMemorySource
from hydrant.errors import ConfigError


def tensors(source: Any) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(source, InMemorySource)
    assert isinstance(source.inputs, torch.Tensor)
    assert isinstance(source.targets, torch.Tensor)
    return source.inputs, source.targets


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "shuffled", "num_samples"), [(42, False, 5000), (7, True, 500)])
def test_the_numbers_are_those_of_the_package(seed: int, shuffled: bool, num_samples: int) -> None:
    package = pytest.importorskip("mnist1d.data", reason="needs the package: uv pip install mnist1d")
    arguments = package.get_dataset_args()
    arguments.seed, arguments.shuffle_seq, arguments.num_samples = seed, shuffled, num_samples
    expected = package.make_dataset(arguments)
    data = mnist1d(samples_seed=seed, shuffled=shuffled, num_samples=num_samples, val_ratio=0)
    for source, part in ((data.train, ""), (data.val, "_test")):
        inputs, targets = tensors(source)
        assert torch.equal(inputs.squeeze(1), torch.tensor(expected[f"x{part}"]).float())
        assert targets.tolist() == expected[f"y{part}"].tolist()


def test_numbers_that_the_package_gives() -> None:
    data = mnist1d(val_ratio=0)
    train, classes = tensors(data.train)
    test, test_classes = tensors(data.val)
    assert (train.shape, test.shape) == ((4000, 1, 40), (1000, 1, 40))
    assert data.test is None
    first, last = (
        [-0.33200566736939013, -0.4719103656557236, -0.778697076293495],
        [0.8777343497528006, 1.1931518368352758],
    )
    assert torch.equal(train[0, 0, :3], torch.tensor(first))
    assert torch.equal(test[-1, 0, -2:], torch.tensor(last))
    assert classes[:8].tolist() == [2, 6, 4, 5, 6, 6, 6, 0]
    assert test_classes[-8:].tolist() == [3, 6, 1, 2, 5, 9, 6, 4]
    every = torch.cat([train, test]).double()
    assert (abs(every.mean()) < 1e-6, abs(every.std(correction=0) - 1) < 1e-6) == (True, True)


def test_validation_is_cut_from_training_and_the_test_set_is_apart() -> None:
    whole, cut = mnist1d(num_samples=500, val_ratio=0), mnist1d(num_samples=500, val_ratio=0.25)
    other = mnist1d(num_samples=500, val_ratio=0.25, split_seed=1)
    train, val, test = (tensors(source)[0] for source in (cut.train, cut.val, cut.test))
    assert [len(part) for part in (train, val, test)] == [300, 100, 100]
    assert torch.equal(test, tensors(whole.val)[0])
    assert torch.equal(torch.cat([train, val]).unique(dim=0), tensors(whole.train)[0].unique(dim=0))
    assert not torch.equal(val, tensors(other.val)[0])
    assert not torch.equal(train, tensors(mnist1d(num_samples=500, val_ratio=0.25, samples_seed=1).train)[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_samples", 0), ("num_samples", 55), ("num_samples", -10), ("samples_seed", -1), ("samples_seed", 2**32),
     ("val_ratio", 1.0), ("val_ratio", 0.999)],
)  # fmt: skip
def test_what_cannot_be_made_is_refused_with_its_key(key: str, value: float) -> None:
    arguments: Any = {"num_samples": 500, key: value}
    with pytest.raises(ConfigError, match=rf"^data\.{key}: "):
        mnist1d(**arguments)
