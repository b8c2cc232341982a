"""Every source: the samples of an update depend only on the seed and the update."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from sources import GLOBAL_BATCH_SIZE, in_memory, joined, spec, update
from stream_properties import *  # noqa: F403
from torch import Tensor

from hydrant.data import InMemorySource, LoaderSource, ShiftFlip, Source, digits, synthetic
from hydrant.data.base import check_shapes
from hydrant.errors import ConfigError


class Samples:
    """25 samples, whose value is their index."""

    def __len__(self) -> int:
        return 25

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index % 10


def noisy(index: int) -> Tensor:
    """Draw from every global generator, like an augmentation."""
    drawn = [random.random(), float(np.random.rand()), torch.rand(()).item()]
    return torch.tensor([index, *drawn], dtype=torch.float32).view(1, 2, 2)


def plain(index: int) -> Tensor:
    return torch.full((1, 2, 2), index, dtype=torch.uint8)


def as_it_is(sample: Any) -> Any:
    return sample


def loader(num_workers: int) -> LoaderSource:
    return LoaderSource(Samples(), noisy, plain, mean=(0.5,), std=(0.25,), num_workers=num_workers)


class Texts(Samples):
    """25 samples, whose parts are tensors of several types."""

    def __getitem__(self, index: int) -> Any:
        return {"ids": torch.tensor([2**53 - index, index]), "span": (index, index + 0.5)}, {
            "label": index % 10
        }


def nested_in_memory() -> InMemorySource:
    ids = torch.arange(25)
    inputs = {"ids": 2**53 - ids, "span": (ids.float(), ids.view(25, 1).repeat(1, 3) > 4)}
    return InMemorySource(inputs, {"label": ids % 10})


SOURCES: dict[str, Callable[[], Source]] = {
    "nested, in memory": nested_in_memory,
    "nested, no workers": lambda: LoaderSource(Texts(), as_it_is, as_it_is, (), (), 0),
    "nested, 2 workers": lambda: LoaderSource(Texts(), as_it_is, as_it_is, (), (), 2),
    "in memory": in_memory,
    "digits": lambda: digits(augment=ShiftFlip(1)).train,
    "synthetic": lambda: synthetic(input_shape=(1, 4, 4), num_classes=10, num_samples=25).train,
    "loader, no workers": lambda: loader(0),
    "loader, 2 workers": lambda: loader(2),
}


@pytest.fixture(
    params=slow_but(
        SOURCES.keys() - {"nested, 2 workers", "loader, no workers", "loader, 2 workers"}, list(SOURCES)
    )
)
def source(request: pytest.FixtureRequest) -> Source:
    return SOURCES[request.param]()


@pytest.mark.parametrize("name", [name for name in SOURCES if not name.startswith("nested")])
def test_images_are_float32_and_classes_int64(name: str) -> None:
    inputs, targets = update(SOURCES[name](), 0)
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)


def test_evaluation_does_not_augment() -> None:
    source = in_memory()
    expected = (source.inputs.float() / 255 - torch.tensor(source.mean).view(3, 1, 1)) / torch.tensor(
        source.std
    ).view(3, 1, 1)
    torch.testing.assert_close(joined(source.batches(spec(), 8))[0], expected)
    expected = (torch.arange(25) / 255 - 0.5) / 0.25
    torch.testing.assert_close(joined(loader(0).batches(spec(), 8))[0][:, 0, 0, 0], expected)


def test_augmentation_differs_between_epochs() -> None:
    source = in_memory().subset(range(GLOBAL_BATCH_SIZE))  # an update is an epoch

    def by_target(num_updates: int) -> Tensor:
        inputs, targets = update(source, num_updates)
        return inputs[targets.argsort(stable=True)]

    assert not torch.equal(by_target(0), by_target(1))


def test_other_shapes_than_those_of_the_data_are_rejected() -> None:
    data = digits()
    assert check_shapes(data, [1, 8, 8], 10) is data
    with pytest.raises(ConfigError, match=r"^data\.input_shape: \[3, 8, 8\] .* \[1, 8, 8\]"):
        digits(input_shape=(3, 8, 8))
    with pytest.raises(ConfigError, match=r"^data\.num_classes: 5 .* have 10"):
        digits(num_classes=5)
