"""What holds of every source: the samples of an update depend only on the seed and the update. A module of tests that
imports these defines the fixture `source`, which has 25 samples."""

import itertools
import random

import numpy as np
import pytest
import torch
from marks import slow
from sources import GLOBAL_BATCH_SIZE, joined, same, spec, update

from hydrant.batch import map_tensors
from hydrant.data import Source


def test_the_samples_depend_on_the_seed_but_not_on_ranks_or_micro_batches(source: Source) -> None:
    whole = update(source, 3)
    assert len(whole[0]) == len(whole[1]) == GLOBAL_BATCH_SIZE
    for world_size, micro_batch_size in ((1, 4), (3, 2)):
        assert same(update(source, 3, world_size, micro_batch_size=micro_batch_size), whole)
    assert not torch.equal(update(source, 3, seed=6)[0], whole[0])


def test_an_update_is_the_same_in_any_order(source: Source) -> None:
    stream = source.stream(spec(micro_batch_size=4))
    in_order = [joined(stream.micro_batches(n)) for n in range(6)]  # 72 draws of 25 samples: across epochs
    for num_updates in (5, 2, 2, 3, 0):  # backwards, repeated, forwards
        assert same(joined(stream.micro_batches(num_updates)), in_order[num_updates])
    next(iter(stream.micro_batches(1)))  # an update that is not finished
    assert same(joined(stream.micro_batches(2)), in_order[2])
    pairs = zip(*zip(stream.micro_batches(1), stream.micro_batches(2), strict=True), strict=True)
    assert all(same(joined(read), expected) for read, expected in zip(pairs, in_order[1:3], strict=True))
    for batch in stream.micro_batches(1):
        map_tensors(torch.Tensor.zero_, batch)  # as a model may write into it
    assert same(joined(stream.micro_batches(1)), in_order[1])
    stream.close()
    assert same(update(source, 4), in_order[4])  # a resumed run


@pytest.mark.parametrize("world_sizes", [(1, 3), *slow(((2,),))])
def test_evaluation_yields_every_sample_once_in_order(source: Source, world_sizes: tuple[int, ...]) -> None:
    whole = joined(source.batches(spec(), batch_size=source.num_samples))
    assert len(whole[0]) == source.num_samples
    for size in world_sizes:
        ranks = [list(source.batches(spec(rank, size, seed=rank), 4)) for rank in range(size)]
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


__all__ = [name for name in dir() if name.startswith("test_")]
