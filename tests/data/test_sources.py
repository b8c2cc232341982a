"""Every source: the samples of an update depend only on the seed and the update."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import of_extension, slow
from sources import GLOBAL_BATCH_SIZE, in_memory, joined, same, spec, update
from torch import Tensor

from hydrant.batch import map_tensors
from hydrant.data import (
    InMemorySource,
    LoaderSource,
    ShiftFlip,
    Source,
    digits,
    synthetic,
)
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


def token_source(sampling: Any) -> Source:
    """25 sequences of 4 tokens in two files, the second of which begins within a sequence."""
    from token_folders import write_bin

    from hydrant.extensions.language.token_data import TokenShards, TokenSource
    from hydrant.extensions.language.token_files import token_files

    tokens = np.random.default_rng(0).integers(0, 9, 102)
    files = [
        write_bin(Path(TEMPORARY.name) / f"{n}.bin", part) for n, part in enumerate(np.split(tokens, [42]))
    ]
    shards = TokenShards(
        [file for path in files for file in token_files("", str(path), "uint16", "data.train")]
    )
    return TokenSource(shards, 4, 9, sampling, 0, "end", range(25))


TEMPORARY = tempfile.TemporaryDirectory()
TOKENS = ("nested, tokens", "nested, documents of tokens")
SOURCES: dict[str, Callable[[], Source]] = {
    TOKENS[0]: lambda: token_source("windows"),
    TOKENS[1]: lambda: token_source("documents"),
    "nested, in memory": nested_in_memory,
    "nested, no workers": lambda: LoaderSource(Texts(), as_it_is, as_it_is, (), (), 0),
    "nested, 2 workers": lambda: LoaderSource(Texts(), as_it_is, as_it_is, (), (), 2),
    "in memory": in_memory,
    "digits": lambda: digits(augment=ShiftFlip(1)).train,
    "synthetic": lambda: synthetic(input_shape=(1, 4, 4), num_classes=10, num_samples=25).train,
    "loader, no workers": lambda: loader(0),
    "loader, 1 worker": lambda: loader(1),
    "loader, 2 workers": lambda: loader(2),
}


@pytest.fixture(params=[*of_extension(*TOKENS), *(name for name in SOURCES if name not in TOKENS)])
def source(request: pytest.FixtureRequest) -> Source:
    return SOURCES[request.param]()


def test_the_samples_do_not_depend_on_ranks_or_micro_batches(source: Source) -> None:
    whole = update(source, 3)
    assert len(whole[0]) == len(whole[1]) == GLOBAL_BATCH_SIZE
    for world_size, micro_batch_size in ((1, 4), (2, 3), (3, 4)):
        assert same(update(source, 3, world_size, micro_batch_size=micro_batch_size), whole)


@pytest.mark.parametrize("name", [name for name in SOURCES if not name.startswith("nested")])
def test_images_are_float32_and_classes_int64(name: str) -> None:
    inputs, targets = update(SOURCES[name](), 0)
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)


def test_an_update_is_the_same_in_any_order(source: Source) -> None:
    stream = source.stream(spec(micro_batch_size=4))
    in_order = [joined(stream.micro_batches(n)) for n in range(6)]  # 72 draws of 25 samples: across epochs
    for num_updates in (5, 2, 2, 3, 0):  # backwards, repeated, forwards
        assert same(joined(stream.micro_batches(num_updates)), in_order[num_updates])
    next(iter(stream.micro_batches(1)))  # an update that is not finished
    assert same(joined(stream.micro_batches(2)), in_order[2])
    stream.close()
    assert same(update(source, 4), in_order[4])  # a resumed run


def test_two_iterations_over_a_stream_are_independent(source: Source) -> None:
    stream = source.stream(spec(micro_batch_size=4))
    pairs = list(zip(stream.micro_batches(1), stream.micro_batches(2), strict=True))
    stream.close()
    assert same(joined(pair[0] for pair in pairs), update(source, 1))
    assert same(joined(pair[1] for pair in pairs), update(source, 2))


def test_an_update_can_be_read_again_after_the_model_wrote_into_it(source: Source) -> None:
    stream = source.stream(spec(micro_batch_size=4))
    for batch in stream.micro_batches(1):
        map_tensors(torch.Tensor.zero_, batch)
    again = joined(stream.micro_batches(1))
    stream.close()
    assert same(again, update(source, 1))


def test_another_seed_is_another_stream(source: Source) -> None:
    assert not torch.equal(update(source, 0)[0], update(source, 0, seed=6)[0])


@pytest.mark.parametrize("world_size", [1, *slow(2), 3])
def test_evaluation_yields_every_sample_once_in_order(source: Source, world_size: int) -> None:
    whole = joined(source.batches(spec(), batch_size=source.num_samples))
    assert len(whole[0]) == source.num_samples
    ranks = [list(source.batches(spec(rank, world_size, seed=rank), 4)) for rank in range(world_size)]
    rounds = itertools.zip_longest(*ranks)
    batches = [batch for batch in itertools.chain.from_iterable(rounds) if batch is not None]
    assert same(joined(batches), whole)
    assert [batch.num_samples for batch in batches[:-1]] == [4] * (len(batches) - 1)


def test_a_subset_has_the_samples_of_its_indices(source: Source) -> None:
    part = source.subset(range(10))
    assert part.num_samples == 10
    whole = joined(source.batches(spec(), 25))
    assert same(joined(part.batches(spec(), 4)), (whole[0][:10], whole[1][:10]))
    assert len(update(part, 0)[0]) == GLOBAL_BATCH_SIZE  # more than 10, because the stream is endless
    chosen = [7, 3, 21]
    expected = joined(part.subset(np.array(chosen[:2])).batches(spec(), 4))
    whole_chosen = source.subset(np.array(chosen))
    assert same(joined(whole_chosen.batches(spec(), 4)), (whole[0][chosen], whole[1][chosen]))
    assert same(joined(whole_chosen.subset(range(2)).batches(spec(), 4)), expected)


def test_reading_does_not_change_the_global_generators(source: Source) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    update(source, 0)
    joined(source.batches(spec(), 4))
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


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
    with pytest.raises(ConfigError, match=r"^data\.num_classes: 5 .* 10 classes"):
        digits(num_classes=5)
