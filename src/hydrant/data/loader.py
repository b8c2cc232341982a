"""Samples read by worker processes: the same ones for any number of workers, ranks and micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.data.base import Order, StreamSpec, shard
from hydrant.data.faults import MAX_DAMAGED_IN_A_ROW, Faults
from hydrant.data.workers import Reading, outlive_signals, seed_streams, streams_restored, workers_told
from hydrant.errors import ConfigError, DataError, HydrantError, OutOfMemory, location, typed_line

Transform = Callable[[Any], Tensor]
"""A raw sample -> its input, shape (*input_shape,). May draw from the global streams of the host."""

_Read = tuple[list[Tensor], dict[str, str]]
"""[inputs (B, *input_shape), targets (B,) int64], empty where none is whole; what is told of damaged ones, by name."""

_HostBatch = _Read | HydrantError  # or why there is none


class SampleSet(Protocol):
    """A map-style data set of raw samples. Raises DataError, or OSError, where one cannot be read."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, int]: ...


@dataclass(frozen=True)
class LoaderSource:
    """Samples read by `num_workers` processes, each of which prepares whole micro-batches ahead of the loop.

    A transform may return bytes (uint8), which make a quarter of the traffic: they are scaled to 0..1 and
    normalised by `mean` and `std` (per channel, in units of the scaled pixel) on the device. What it returns
    in float32 is taken as it is. With `num_workers=0` the loop itself reads.

    `name_of` names a sample in what is told of it. A damaged one ends the run, unless `faults` skip them: then it
    is left out of an evaluation, and in training the next whole sample of the set stands in for it.
    """

    samples: SampleSet
    train_transform: Transform
    eval_transform: Transform
    mean: Sequence[float]
    std: Sequence[float]
    num_workers: int
    name_of: Callable[[int], str] = "sample {} of the data set".format
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise ConfigError(
                "data.num_workers", f"{self.num_workers} is negative; 0 means that the loop reads"
            )

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    def stream(self, spec: StreamSpec) -> LoaderStream:
        return LoaderStream(self, spec)

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterator[Batch]:
        """Workers are started for the pass and end with it."""
        plan = list(shard(self.num_samples, batch_size, spec.rank, spec.world_size))
        num_workers = min(self.num_workers, len(plan))
        reader = _Reader(self, self.eval_transform, spec.seed, Reading(num_workers), replaces=False)
        receive = _Receiver.of(self, spec.device)
        for host_batch in _batches(reader, _loader(reader, plan, spec.device)):
            batch = receive(host_batch)
            if len(batch.targets):
                yield batch

    def first(self, num_samples: int) -> LoaderSource:
        chosen: Any = Subset[Any](_as_dataset(self.samples), range(min(num_samples, self.num_samples)))
        return replace(self, samples=chosen)


class LoaderStream:
    """The training stream of one rank over a `LoaderSource`.

    Read update after update, the workers run ahead without a pause. A jump starts them again at the new
    place; nothing in between is read. The batches of the current update are kept on the host, so that an
    update that the loss scaler skipped is read once.
    """

    def __init__(self, source: LoaderSource, spec: StreamSpec) -> None:
        self._spec = spec
        self._receive = _Receiver.of(source, spec.device)
        self._plan = _Plan(Order(spec.seed, source.num_samples, torch.device("cpu")), spec)
        reading = Reading(source.num_workers)
        self._reader = _Reader(source, source.train_transform, spec.seed, reading, replaces=True)
        self.close()

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        for micro_step in range(self._spec.num_micro_steps):
            yield self._receive(self._host_batch(num_updates, micro_step))

    def close(self) -> None:
        """Stop the workers, which end when nothing refers to their loader. A later read starts new ones."""
        self._ahead: Iterator[_HostBatch] = iter(())
        self._loader = _loader(self._reader, self._plan, self._spec.device)
        self._current = -1
        self._kept: list[_HostBatch] = []

    def _host_batch(self, num_updates: int, micro_step: int) -> _HostBatch:
        if num_updates != self._current:
            is_complete = len(self._kept) == self._spec.num_micro_steps
            if not (is_complete and num_updates == self._current + 1):
                self._plan.start = num_updates
                self._ahead = _batches(self._reader, self._loader)
            self._current, self._kept = num_updates, []
        while len(self._kept) <= micro_step:
            self._kept.append(next(self._ahead))
        return self._kept[micro_step]


@dataclass
class _Plan:
    """The draws of each micro-batch of a rank, from update `start` on, without end."""

    order: Order
    spec: StreamSpec
    start: int = 0

    def __iter__(self) -> Iterator[list[int]]:
        for num_updates in itertools.count(self.start):
            for position in self.spec.positions(num_updates):
                yield self.order.draws(position, self.spec.micro_batch_size).tolist()


@dataclass(frozen=True)
class _Reader(Dataset[_HostBatch]):
    """Reads the micro-batch of some draws; what is random about a sample is a function of `(seed, draw)`.

    So is what stands in for a damaged one, where it `replaces` them: the next in the set that is whole.
    """

    source: LoaderSource
    transform: Transform
    seed: int
    reading: Reading
    replaces: bool

    def __getitem__(self, draws: Sequence[int]) -> _HostBatch:
        # An exception would come out of a worker as a page of traceback; a value comes out as it is.
        damaged: dict[str, str] = {}
        with streams_restored():
            try:
                samples = [sample for draw in draws for sample in self._at(draw, damaged)]
            except HydrantError as error:
                return error
            finally:
                self.reading.begin(-1)
            return default_collate(samples) if samples else [torch.empty(0), torch.empty(0)], damaged

    def _at(self, draw: int, damaged: dict[str, str]) -> list[tuple[Tensor, int]]:
        """The sample of a draw, or none; adds the damaged ones that were met."""
        first, faults = draw % self.source.num_samples, self.source.faults
        for offset in range(MAX_DAMAGED_IN_A_ROW if self.replaces else 1):
            index = (first + offset) % self.source.num_samples
            try:
                return [self._sample(draw, index)]
            except DataError as error:
                if not faults.skips:
                    raise DataError(f"{error}{faults.remedy}") from error
                damaged[self.source.name_of(index)] = str(error)
        if self.replaces:
            told = f"{MAX_DAMAGED_IN_A_ROW} samples in a row cannot be read, which are not a few damaged ones"
            raise DataError(f"{told}; the first: {damaged[self.source.name_of(first)]}")
        return []

    def _sample(self, draw: int, index: int) -> tuple[Tensor, int]:
        self.reading.begin(index)
        seed_streams(seeding.mix(self.seed, seeding.SAMPLE, draw))
        name = self.source.name_of(index)
        try:
            raw, target = self.source.samples[index]
            return self.transform(raw), target
        except DataError:
            raise
        except MemoryError as error:  # of the machine, not of the sample
            told = f"there is no memory left to read {name}; lower data.num_workers or micro_batch_size"
            raise OutOfMemory(told) from error
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error}") from error
        except Exception as error:  # a decoder or a user's transform raises anything
            raise DataError(f"{name} cannot be read: {typed_line(error)} (at {location(error)})") from error


@dataclass(frozen=True)
class _Receiver:
    """Brings a host batch to the device."""

    mean: Tensor  # (C, 1, 1)
    std: Tensor  # (C, 1, 1)
    faults: Faults

    @classmethod
    def of(cls, source: LoaderSource, device: torch.device) -> _Receiver:
        mean, std = (torch.tensor(tuple(v), device=device).view(-1, 1, 1) for v in (source.mean, source.std))
        return cls(mean, std, source.faults)

    def __call__(self, host_batch: _HostBatch) -> Batch:
        if isinstance(host_batch, HydrantError):
            raise host_batch
        tensors, damaged = host_batch
        self.faults.note(damaged)
        inputs, targets = (tensor.to(self.mean.device, non_blocking=True) for tensor in tensors)
        if inputs.dtype == torch.uint8:
            inputs = inputs.float().div_(255).sub_(self.mean).div_(self.std)
        return Batch(inputs, targets)


def _batches(reader: _Reader, loader: DataLoader[_HostBatch]) -> Iterator[_HostBatch]:
    return workers_told(loader, reader.reading, reader.source.name_of)


def _loader(reader: _Reader, plan: Iterable[Sequence[int]], device: torch.device) -> DataLoader[_HostBatch]:
    num_workers = reader.reading.num_workers
    return DataLoader(
        reader,
        sampler=plan,
        batch_size=None,  # the plan names the samples of a batch and the reader collates them
        collate_fn=_as_is,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=device.type == "cuda",
        worker_init_fn=outlive_signals,
        generator=torch.Generator(),  # torch draws a seed for its workers, by default from the global stream
    )


def _as_is(host_batch: Any) -> Any:
    return host_batch


def _as_dataset(samples: Any) -> Dataset[Any]:
    return samples
