"""What holds for every source: the samples of an update depend on the seed and the update alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from hydrant.batch import Batch
from hydrant.data import LoaderSource, ResidentSource, ShiftFlip, Source, StreamSpec, digits, synthetic
from hydrant.data.base import check_stated
from hydrant.data.resident import Augment
from hydrant.errors import ConfigError

GLOBAL_BATCH_SIZE = 12
CPU = torch.device("cpu")


class Noisy:
    """25 samples; `noisy` adds to each a number from every global stream, as augmentations do."""

    def __len__(self) -> int:
        return 25

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index % 10


def noisy(index: int) -> Tensor:
    drawn = [random.random(), float(np.random.rand()), torch.rand(()).item()]
    return torch.tensor([index, *drawn], dtype=torch.float32).view(1, 2, 2)


def plain(index: int) -> Tensor:
    return torch.full((1, 2, 2), index, dtype=torch.uint8)


def loader(num_workers: int) -> LoaderSource:
    return LoaderSource(Noisy(), noisy, plain, mean=(0.5,), std=(0.25,), num_workers=num_workers)


def resident() -> ResidentSource:
    images = torch.randint(0, 256, (25, 3, 6, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    augment = ShiftFlip(2, flip=True)
    return ResidentSource(
        images, torch.arange(25) % 10, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1), augment=augment
    )


SOURCES: dict[str, Callable[[], Source]] = {
    "resident": resident,
    "digits": lambda: digits(augment=ShiftFlip(1)).train,
    "synthetic": lambda: synthetic(input_shape=(1, 4, 4), num_classes=10, num_samples=25).train,
    "loader, no workers": lambda: loader(0),
    "loader, 1 worker": lambda: loader(1),
    "loader, 2 workers": lambda: loader(2),
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Source:
    return SOURCES[request.param]()


def spec(
    rank: int = 0, world_size: int = 1, micro_batch_size: int = GLOBAL_BATCH_SIZE, seed: int = 5
) -> StreamSpec:
    return StreamSpec(seed, GLOBAL_BATCH_SIZE, micro_batch_size, rank, world_size, CPU)


def joined(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


@pytest.mark.parametrize("augment", [None, ShiftFlip(), lambda images, draws, seed: images])
def test_floats_are_normalised_to_the_same_bits_once_or_batch_by_batch(augment: Augment | None) -> None:
    inputs = torch.rand(25, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    given = inputs.clone()
    source = ResidentSource(inputs, torch.arange(25), (0.5, 0.4, 0.3), (0.3, 0.2, 0.1), augment)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (source.mean, source.std))
    for batch in [*source.stream(spec()).micro_batches(1), *source.batches(spec(), 10)]:
        assert torch.equal(batch.inputs, (inputs[batch.targets] - mean) / std)
    assert torch.equal(inputs, given)


def update(source: Source, num_updates: int, world_size: int = 1, **kwargs: int) -> tuple[Tensor, Tensor]:
    """The samples of an update in the order of the stream: micro-step by micro-step, rank by rank."""
    dealt: list[list[Batch]] = []
    for rank in range(world_size):
        stream = source.stream(spec(rank, world_size, **kwargs))
        dealt.append(list(stream.micro_batches(num_updates)))
        stream.close()
    return joined(itertools.chain.from_iterable(zip(*dealt, strict=True)))


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_the_samples_do_not_depend_on_ranks_or_micro_batches(source: Source) -> None:
    whole = update(source, 3)
    assert whole[0].dtype == torch.float32
    assert whole[1].dtype == torch.int64
    assert len(whole[0]) == len(whole[1]) == GLOBAL_BATCH_SIZE
    for world_size, micro_batch_size in ((1, 4), (2, 3), (3, 4)):
        assert same(update(source, 3, world_size, micro_batch_size=micro_batch_size), whole)


def test_any_update_is_the_same_however_it_is_reached(source: Source) -> None:
    stream = source.stream(spec(micro_batch_size=4))
    in_order = [joined(stream.micro_batches(n)) for n in range(6)]  # 72 draws of 25 samples: across epochs
    for num_updates in (5, 2, 2, 3, 0):  # again, back, twice, on, back
        assert same(joined(stream.micro_batches(num_updates)), in_order[num_updates])
    next(iter(stream.micro_batches(1)))  # an update left in the middle
    assert same(joined(stream.micro_batches(2)), in_order[2])
    stream.close()
    assert same(update(source, 4), in_order[4])  # a resumed run


def test_batches_made_at_once_are_made_again_when_they_were_given_away() -> None:
    source, made = resident(), list[int]()
    stream = source.stream(spec(micro_batch_size=4))
    make = stream.reader.train_batch
    stream.reader = SimpleNamespace(train_batch=lambda draws: made.append(len(draws)) or make(draws))
    for num_updates in range(80):
        for batch in stream.micro_batches(num_updates):
            batch.inputs.zero_()
    assert made == [12, 12 * 64, 12 * 64]
    for num_updates in (70, 71):
        assert same(joined(stream.micro_batches(num_updates)), update(source, num_updates))
    assert made[3:] == [12, 12]  # alone


def test_batches_made_at_once_may_be_written_into_with_what_is_learned() -> None:
    """As a model may that begins with `x += self.position`; the other batches stay as they are."""
    source, learned = resident(), torch.nn.Parameter(torch.ones(()))
    stream = source.stream(spec(micro_batch_size=4))
    for num_updates in range(3):
        for batch in stream.micro_batches(num_updates):
            before = batch.inputs.clone()
            batch.inputs.mul_(2 * learned)
            assert torch.equal(batch.inputs, 2 * before)
        assert same(joined(stream.micro_batches(num_updates)), update(source, num_updates))


def test_two_readings_of_a_stream_do_not_disturb_each_other(source: Source) -> None:
    stream = source.stream(spec(micro_batch_size=4))
    pairs = list(zip(stream.micro_batches(1), stream.micro_batches(2), strict=True))
    stream.close()
    assert same(joined(pair[0] for pair in pairs), update(source, 1))
    assert same(joined(pair[1] for pair in pairs), update(source, 2))


def test_another_seed_is_another_stream(source: Source) -> None:
    assert not torch.equal(update(source, 0)[0], update(source, 0, seed=6)[0])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_holds_every_sample_once_and_in_order(source: Source, world_size: int) -> None:
    whole = joined(source.batches(spec(), batch_size=source.num_samples))
    assert len(whole[0]) == source.num_samples
    ranks = [list(source.batches(spec(rank, world_size, seed=rank), 4)) for rank in range(world_size)]
    dealt = itertools.chain.from_iterable(itertools.zip_longest(*ranks))
    batches = [batch for batch in dealt if batch is not None]
    assert same(joined(batches), whole)
    assert [len(batch.inputs) for batch in batches[:-1]] == [4] * (len(batches) - 1)


def test_the_first_samples_are_a_source_of_their_own(source: Source) -> None:
    part = source.first(10)
    assert part.num_samples == 10
    whole = joined(source.batches(spec(), 25))
    assert same(joined(part.batches(spec(), 4)), (whole[0][:10], whole[1][:10]))
    assert len(update(part, 0)[0]) == GLOBAL_BATCH_SIZE  # more than there are: the stream is endless
    assert source.first(10**6).num_samples == source.num_samples


def test_reading_leaves_the_global_streams_alone(source: Source) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    update(source, 0)
    joined(source.batches(spec(), 4))
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_evaluation_does_not_augment() -> None:
    source = resident()
    expected = (source.inputs.float() / 255 - torch.tensor(source.mean).view(3, 1, 1)) / torch.tensor(
        source.std
    ).view(3, 1, 1)
    torch.testing.assert_close(joined(source.batches(spec(), 8))[0], expected)
    assert torch.equal(
        joined(loader(0).batches(spec(), 8))[0][:, 0, 0, 0], (torch.arange(25) / 255 - 0.5) / 0.25
    )


def test_every_epoch_augments_anew() -> None:
    source = resident().first(GLOBAL_BATCH_SIZE)  # an update is an epoch

    def by_target(num_updates: int) -> Tensor:
        inputs, targets = update(source, num_updates)
        return inputs[targets.argsort(stable=True)]

    assert not torch.equal(by_target(0), by_target(1))


def test_shapes_that_are_not_those_of_the_data_are_refused() -> None:
    data = digits()
    assert check_stated(data, [1, 8, 8], 10) is data
    with pytest.raises(ConfigError, match=r"^data\.input_shape: \[3, 8, 8\] .* \[1, 8, 8\]"):
        digits(input_shape=(3, 8, 8))
    with pytest.raises(ConfigError, match=r"^data\.num_classes: 5 .* 10 classes"):
        digits(num_classes=5)


@pytest.mark.parametrize("val_ratio", [0.0, 1.0, 1e-4])
def test_a_split_without_samples_is_refused(val_ratio: float) -> None:
    with pytest.raises(ConfigError, match=r"^data\.val_ratio: "):
        digits(val_ratio=val_ratio)


@pytest.mark.parametrize("val_ratio", [0.013, 0.2, 1 / 3, 0.9])
def test_digits_and_their_split_are_those_of_scikit_learn(val_ratio: float) -> None:
    images, labels = load_digits(return_X_y=True)
    inputs = (torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16 - 0.3053) / 0.3760
    for seed in range(5):
        data = digits(val_ratio=val_ratio, split_seed=seed)
        sides = train_test_split(range(len(labels)), test_size=val_ratio, random_state=seed, stratify=labels)
        for source, side in zip((data.train, data.val), sides, strict=True):
            own_inputs, own_targets = joined(source.batches(spec(), 2000))
            assert torch.equal(own_inputs, inputs[sorted(side)])
            assert own_targets.tolist() == labels[sorted(side)].tolist()


def test_digits_are_split_by_class_and_by_the_split_seed_alone() -> None:
    data = digits()
    assert (data.train.num_samples, data.val.num_samples) == (1437, 360)
    counts = torch.bincount(joined(data.val.batches(spec(), 360))[1])
    assert counts.min() >= 34
    assert counts.max() <= 38
    train, _ = joined(data.train.batches(spec(), 2000))
    assert abs(train.mean()) < 0.01  # normalised
    assert abs(train.std() - 1) < 0.01
    other = joined(digits(split_seed=1).val.batches(spec(), 360))
    assert not torch.equal(joined(data.val.batches(spec(), 360))[0], other[0])
