"""Read sources of data, for the tests of every source."""

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from hydrant.batch import Batch, Tensors, tensors_of
from hydrant.clock import Steps
from hydrant.data import InMemorySource, ShiftFlip, Source, StreamSpec

GLOBAL_BATCH_SIZE = 12
CPU = torch.device("cpu")


def in_memory() -> InMemorySource:
    images = torch.randint(0, 256, (25, 3, 6, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    augment = ShiftFlip(2, flip=True)
    return InMemorySource(
        images, torch.arange(25) % 10, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1), augment=augment
    )


def as_input(value: int) -> Tensor:
    """Return an image of one pixel with this value, as a transform of a LoaderSource."""
    return torch.full((1, 1, 1), float(value))


def spec(
    rank: int = 0, world_size: int = 1, micro_batch_size: int = GLOBAL_BATCH_SIZE, seed: int = 5
) -> StreamSpec:
    return StreamSpec(seed, Steps.constant(GLOBAL_BATCH_SIZE), micro_batch_size, rank, world_size, CPU)


def joined(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Return the concatenated inputs and targets. Those of several tensors become columns of one."""
    inputs, targets = zip(*batches, strict=True)
    return torch.cat([_columns(part) for part in inputs]), torch.cat([_columns(part) for part in targets])


def _columns(tree: Tensors) -> Tensor:
    if isinstance(tree, Tensor):
        return tree
    return torch.cat([tensor.reshape(len(tensor), -1).double() for tensor in tensors_of(tree)], dim=1)


def update(source: Source, num_updates: int, world_size: int = 1, **kwargs: int) -> tuple[Tensor, Tensor]:
    """Return the samples of an update in the order of the stream: by micro-step, then by rank."""
    batches: list[list[Batch]] = []
    for rank in range(world_size):
        stream = source.stream(spec(rank, world_size, **kwargs))
        batches.append(list(stream.micro_batches(num_updates)))
        stream.close()
    return joined(itertools.chain.from_iterable(zip(*batches, strict=True)))


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
