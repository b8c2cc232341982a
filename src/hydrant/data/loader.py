"""Samples read by worker processes: the same samples for any number of workers, ranks and micro-batches.

The batches of a source together with the numbers of their samples, which damaged samples leave out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from hydrant import seeding
from hydrant.batch import Batch, Tensors, tensors_of, with_tensors
from hydrant.data import base, workers
from hydrant.data.in_memory import Copies, DeviceStream, InMemorySource, copies_to
from hydrant.errors import ConfigError, DataError, HydrantError, location, typed_line

Transform = Callable[[Any], Tensors]
"""A raw sample -> its input: for images, shape (*input_shape,). May draw from the global CPU generators."""

Collate = Callable[[list[tuple[Tensors, Tensors]]], tuple[Tensors, Tensors]]
"""A list of (input, target) -> the inputs and targets of a batch, such as sequences padded to the longest one."""

_Samples = tuple[tuple[Tensors, Tensors], dict[int, str]]
"""Inputs and targets, and messages about damaged samples by index. The tensors are empty if all are damaged."""

_NOTHING = (torch.empty(0), torch.empty(0))

_HostBatch = _Samples | HydrantError
"""A batch on the host, or the error that prevented it."""


class SampleSet(Protocol):
    """A map-style data set of (raw sample, target). Raises DataError or OSError if a sample cannot be read."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class LoaderSource:
    """Samples read by `num_workers` processes, each of which prepares whole micro-batches in advance.

    A transform may return a uint8 tensor, which is a quarter of the size of float32. If there are a `mean` and a `std`
    (per channel, for pixels in 0..1), it is scaled to 0..1 and normalized on the device. Any other result is used as it
    is; integers stay integers. `collate` makes a batch of samples. With `num_workers=0` the training process reads.

    With `is_held`, the training process reads each sample once, and holds all as tensors: they never change, and none
    is skipped.

    `name_of` returns the name of a sample for messages; with `names_are_files`, its file. A damaged sample ends the run
    unless `damaged.skip` is set. Then evaluations leave it out, and training uses the next readable sample instead.
    """

    samples: SampleSet
    train_transform: Transform
    eval_transform: Transform
    mean: Sequence[float]
    std: Sequence[float]
    num_workers: int
    name_of: Callable[[int], str] = "sample {} of the data set".format
    damaged: base.DamagedSamples = field(default_factory=base.DamagedSamples)
    collate: Collate = default_collate
    names_are_files: bool = False
    rounds_doubles: bool = False  # to the format of the run, float32 unless it trains in float64
    is_held: bool = False

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    @property
    def labels(self) -> np.ndarray | None:
        """The attribute `targets` of the samples, as in torchvision's data sets, if it holds classes."""
        return base.as_labels(getattr(self.samples, "targets", None), self.num_samples)

    def stream(self, spec: base.StreamSpec) -> LoaderStream | DeviceStream:
        return self.held.stream(spec) if self.is_held else LoaderStream(self, spec)

    def batches(self, spec: base.StreamSpec, batch_size: int) -> Iterable[Batch]:
        return self.held.batches(spec, batch_size) if self.is_held else LoaderBatches(self, spec, batch_size)

    @cached_property
    def held(self) -> InMemorySource:
        """The samples as tensors."""
        reader = _BatchDataset(self, base.ON_HOST, workers.WorkerProgress(0), is_training=False)
        with seeding.kept_generators():
            samples = [sample for index in range(self.num_samples) for sample in reader.read(index, {})]
        try:
            tensors = self.collate(samples)
            return InMemorySource(*tensors, (), (), has_pixels=False, rounds_doubles=self.rounds_doubles)
        except Exception as error:  # samples of the user's do not stack
            message = f"true cannot hold the samples as tensors: {typed_line(error)}"
            raise ConfigError("data.in_memory", message, remedy="false reads any samples") from error

    def subset(self, indices: base.Indices) -> LoaderSource:
        chosen = _Chosen(self.samples, self.name_of, indices)
        return replace(self, samples=chosen, name_of=chosen.name)


@dataclass(frozen=True)
class _Chosen:
    """Some of the samples of a set, which keep their names."""

    samples: SampleSet
    name_of: Callable[[int], str]
    indices: base.Indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int, /) -> tuple[Any, Any]:
        return self.samples[int(self.indices[index])]

    @property
    def targets(self) -> np.ndarray | None:
        targets = base.as_labels(getattr(self.samples, "targets", None), len(self.samples))
        return None if targets is None else targets[np.asarray(self.indices)]

    def name(self, index: int) -> str:
        return self.name_of(int(self.indices[index]))


class LoaderStream:
    """The training stream of one rank over a `LoaderSource`.

    While updates are read in order, the workers read ahead without a pause. A jump restarts them at the new position
    and reads nothing in between. The batches of the current update stay on the host, so that an update that is tried
    again is read once.
    """

    def __init__(self, source: LoaderSource, spec: base.StreamSpec) -> None:
        self._spec, self._transfer = spec, _Transfer.of(source, spec.device)
        order = base.SampleOrder(spec.seed, source.num_samples, torch.device("cpu"))
        self._sampler, progress = _DrawSampler(order, spec), workers.WorkerProgress(source.num_workers)
        self._dataset = _BatchDataset(source, spec, progress, is_training=True)
        self.close()

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        for micro_step in range(self._spec.num_micro_steps(num_updates)):
            yield self._transfer(self._host_batch(num_updates, micro_step))

    def close(self) -> None:
        """Stop the workers, which end when nothing refers to their loader. A later read starts new ones."""
        self._iterator: Iterator[_HostBatch] = iter(())
        self._loader = self._dataset.loader(self._spec.device, self._sampler)
        self._num_updates = -1
        self._host_batches: list[_HostBatch] = []  # of the current update

    def _host_batch(self, num_updates: int, micro_step: int) -> _HostBatch:
        if num_updates != self._num_updates:
            is_complete = len(self._host_batches) == self._spec.num_micro_steps(self._num_updates)
            if not (is_complete and num_updates == self._num_updates + 1):
                self._sampler.start = num_updates
                self._iterator = self._dataset.iterate(self._loader)
            self._num_updates, self._host_batches = num_updates, []
        while len(self._host_batches) <= micro_step:
            self._host_batches.append(next(self._iterator))
        return self._host_batches[micro_step]


class LoaderBatches:
    """The evaluation batches of one rank over a `LoaderSource`, for any number of passes.

    The workers start with the first pass and wait between passes. A pass that does not reach its end stops them.
    """

    def __init__(self, source: LoaderSource, spec: base.StreamSpec, batch_size: int) -> None:
        self._device = spec.device
        self._ranges = list(base.batch_ranges(source.num_samples, batch_size, spec.rank, spec.world_size))
        progress = workers.WorkerProgress(min(source.num_workers, len(self._ranges)))
        self._dataset = _BatchDataset(source, spec, progress, is_training=False)
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        return (batch for _, batch in self.numbered())

    def numbered(self) -> Iterator[tuple[Tensor, Batch]]:
        """Yield each batch with the numbers of its samples, int64 (B,) on the host."""
        transfer = _Transfer.of(self._dataset.source, self._device)
        try:
            for numbers, host_batch in zip(self._ranges, self._dataset.iterate(self._loader), strict=True):
                batch = transfer(host_batch)
                if batch.num_samples:
                    damaged = {} if isinstance(host_batch, HydrantError) else host_batch[1]
                    yield torch.tensor([n for n in numbers if n not in damaged]), batch
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the workers, which end when nothing refers to their loader. A later pass starts new ones."""
        self._loader = self._dataset.loader(self._device, self._ranges)


@dataclass
class _DrawSampler:
    """The sampler of a DataLoader: the draws of each micro-batch of a rank from update `start` on, without end."""

    order: base.SampleOrder
    spec: base.StreamSpec
    start: int = 0

    def __iter__(self) -> Iterator[list[int]]:
        for num_updates in itertools.count(self.start):
            for position in self.spec.positions(num_updates):
                yield self.order.draws(position, self.spec.micro_batch_size).tolist()


@dataclass(frozen=True)
class _BatchDataset(Dataset[_HostBatch]):
    """A data set whose items are micro-batches, by their draws.

    The random numbers of a sample are a function of `(seed, draw)`. In training, the next readable sample of the set
    replaces a damaged one.
    """

    source: LoaderSource
    spec: base.StreamSpec
    progress: workers.WorkerProgress
    is_training: bool

    def __getitem__(self, draws: Sequence[int]) -> _HostBatch:  # pyrefly: ignore[bad-override-param-name]  # called by position
        # Errors are returned, because a worker would turn a raised one into a page of traceback.
        damaged: dict[int, str] = {}
        with seeding.kept_generators():
            try:
                samples = [sample for draw in draws for sample in self.read(draw, damaged)]
                self.progress.set(-1)
                doubles = self.spec.doubles if self.source.rounds_doubles else torch.float64
                batch = collated(self.source.collate, samples, doubles) if samples else _NOTHING
            except HydrantError as error:
                return error
            finally:
                self.progress.set(-1)
            return batch, damaged

    def loader(self, device: torch.device, sampler: Any) -> workers.WorkerLoader[_HostBatch]:
        """Return a loader of this data set, whose workers wait between two passes."""
        return workers.WorkerLoader(self, self.progress.num_workers, device, sampler, persistent=True)

    def iterate(self, loader: DataLoader[_HostBatch]) -> Iterator[_HostBatch]:
        """Iterate over a loader of this data set."""
        return workers.iterate_loader(loader, self.progress, self.source.name_of)

    def read(self, draw: int, damaged: dict[int, str]) -> list[tuple[Tensors, Tensors]]:
        """Return a list with the sample of a draw, empty if it is left out. Add damaged samples to `damaged`."""
        source = self.source
        first = draw % source.num_samples
        num_tries = min(base.MAX_DAMAGED_IN_A_ROW, source.num_samples) if self.is_training else 1
        for offset in range(num_tries):
            index = (first + offset) % source.num_samples
            try:
                return [self._sample(draw, index)]
            except DataError as error:
                if not source.damaged.skip:
                    raise DataError(str(error), remedy=source.damaged.remedy) from error
                damaged[index] = str(error)
        if self.is_training:
            message = f"{num_tries} samples in a row cannot be read, which is too many to skip"
            if num_tries == source.num_samples:
                message = f"none of the {num_tries} samples can be read"
            raise DataError(f"{message}; the first: {damaged[first]}")
        return []

    def _sample(self, draw: int, index: int) -> tuple[Tensors, Tensors]:
        self.progress.set(index)
        seeding.seed_host(self.spec.seed, seeding.SAMPLE, draw)
        source = self.source
        transform = source.train_transform if self.is_training else source.eval_transform
        with workers.reading(source.name_of(index), "data.num_workers or micro_batch_size"):
            raw, target = source.samples[index]
            return transform(raw), target


def collated(
    collate: Collate, samples: list[tuple[Tensors, Tensors]], doubles: torch.dtype
) -> tuple[Tensors, Tensors]:
    """Return the inputs and targets of a batch, made by a function of the user's; float64 becomes `doubles`.

    Raises:
        ConfigError: the function fails, or returns something else.
        OutOfMemory: /dev/shm is full, where a worker puts the batch.
    """
    try:
        batch: Any = base.rounded(collate(samples), doubles)
        if get_worker_info() is not None:  # else a thread of its own would fail to, for which nobody waits
            for tensor in tensors_of(batch):
                if type(tensor) is Tensor and tensor.layout is torch.strided:  # else without storage
                    tensor.share_memory_()
    except Exception as error:  # a user's function raises anything
        if "</torch_" in str(error) and "No space left on device" in str(error):  # the name of such memory
            raise workers.full_shared_memory(samples) from error
        message = f"cannot make a batch of {len(samples)} samples: {typed_line(error)} (at {location(error)})"
        remedy = "set a function that pads them, for example"
        raise ConfigError("data.collate", message, remedy=remedy) from error
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        message = f"returns a {type(batch).__name__}, but (inputs, targets) of a batch are needed"
        raise ConfigError("data.collate", message)
    return batch[0], batch[1]


@dataclass(frozen=True)
class _Transfer:
    """Copies host batches to the device, also if that is the CPU, and normalizes them there."""

    device: torch.device
    copies: Copies
    shift: Tensor  # (C, 1, 1), for bytes
    scale: Tensor  # (C, 1, 1)
    source: LoaderSource

    @classmethod
    def of(cls, source: LoaderSource, device: torch.device) -> _Transfer:
        mean, std = (torch.tensor(tuple(v), device=device).view(-1, 1, 1) for v in (source.mean, source.std))
        return cls(device, copies_to(device), 255 * mean, 1 / (255 * std), source)

    def __call__(self, host_batch: _HostBatch) -> Batch:
        if isinstance(host_batch, HydrantError):
            raise host_batch
        (inputs, targets), damaged = host_batch
        self.source.damaged.record({self.source.name_of(n): message for n, message in damaged.items()})
        if not (isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and len(self.scale)):
            return Batch(*self._copied((inputs, targets)))
        if self.device.type == "cpu":  # the floats are the copy
            targets = self._copied(targets)
        else:
            inputs, targets = self._copied((inputs, targets))
        return Batch(inputs.float().sub_(self.shift).mul_(self.scale), targets)

    def _copied(self, tree: Tensors) -> Tensors:
        # The model may write into a batch, and an update that is tried again reads the host batch again.
        return with_tensors(tree, self.copies(list(tensors_of(tree))))
