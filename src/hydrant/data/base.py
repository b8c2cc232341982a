"""What the loop asks of a data set: the micro-batches of any update, and one pass for evaluation.

A *draw* is one appearance of a sample in training: `draw = epoch * num_samples + index`. The order of the
draws is a pure function of the seed, and so is everything random that happens to a draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.data.faults import Faults
from hydrant.errors import ConfigError


@dataclass(frozen=True)
class StreamSpec:
    """Which part of the sample stream this rank reads, and how."""

    seed: int
    global_batch_size: int
    micro_batch_size: int
    rank: int
    world_size: int
    device: torch.device

    @property
    def num_micro_steps(self) -> int:
        return self.global_batch_size // (self.micro_batch_size * self.world_size)

    def positions(self, num_updates: int) -> Iterator[int]:
        """Where in the endless sample stream each micro-batch of this rank begins, in update `num_updates`.

        The samples of an update do not depend on the number of ranks or micro-batches they are dealt to.
        """
        start = num_updates * self.global_batch_size
        for micro_step in range(self.num_micro_steps):
            yield start + (micro_step * self.world_size + self.rank) * self.micro_batch_size


class Stream(Protocol):
    """The training samples of one rank, by update."""

    def micro_batches(self, num_updates: int) -> Iterable[Batch]:
        """The micro-batches of the update after `num_updates` completed ones; the same at every call."""
        ...

    def close(self) -> None:
        """Stop workers, if there are any."""
        ...


class Source(Protocol):
    """A map-style set of samples."""

    @property
    def num_samples(self) -> int: ...

    def stream(self, spec: StreamSpec) -> Stream:
        """The endless shuffled training stream of one rank."""
        ...

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterable[Batch]:
        """Every sample of this rank once, in order, without augmentation; the last batch may be smaller."""
        ...

    def first(self, num_samples: int) -> Source:
        """The first `num_samples` samples as a source of their own."""
        ...


@dataclass(frozen=True)
class Data:
    """A data set: what to train on, what to evaluate on, and the shapes a model needs to know."""

    train: Source
    val: Source
    input_shape: tuple[int, ...]
    num_classes: int
    faults: Faults = field(default_factory=Faults)  # of both sources


def check_stated(data: Data, input_shape: Sequence[int], num_classes: int) -> Data:
    """`data`, once its shapes are those the config states (from where models interpolate them)."""
    if tuple(input_shape) != data.input_shape:
        needed = f"the samples are of shape {list(data.input_shape)}"
        raise ConfigError("data.input_shape", f"{list(input_shape)} is stated, but {needed}; state that")
    if num_classes != data.num_classes:
        raise ConfigError(
            "data.num_classes",
            f"{num_classes} is stated, but there are {data.num_classes} classes; state that",
        )
    return data


@dataclass
class Order:
    """The endless stream of draws: epoch after epoch, each in its own seeded permutation."""

    seed: int
    num_samples: int
    device: torch.device
    _epochs: dict[int, Tensor] = field(default_factory=dict)

    def draws(self, position: int, count: int) -> Tensor:
        """The draws at `[position, position + count)`, int64, shape (count,), on `device`."""
        parts = []
        while count > 0:
            epoch, offset = divmod(position, self.num_samples)
            part = self._epoch(epoch)[offset : offset + count]
            parts.append(part)
            position, count = position + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs = {e: d for e, d in self._epochs.items() if e >= epoch - 1}
            indices = seeding.permutation(self.seed, epoch, self.num_samples)
            # From pageable memory the copy is staged before it returns, so it need not wait for the device.
            self._epochs[epoch] = (indices + epoch * self.num_samples).to(self.device, non_blocking=True)
        return self._epochs[epoch]


def shard(num_samples: int, batch_size: int, rank: int, world_size: int) -> Iterator[range]:
    """The batches of one pass that belong to `rank`: together the ranks hold every sample once.

    >>> list(shard(10, 4, rank=0, world_size=2)), list(shard(10, 4, rank=1, world_size=2))
    ([range(0, 4), range(8, 10)], [range(4, 8)])
    """
    for start in range(rank * batch_size, num_samples, world_size * batch_size):
        yield range(start, min(start + batch_size, num_samples))
