"""The interface of a data set: the micro-batches of any update, and one pass for evaluation.

A *draw* is one use of a sample in training: `draw = epoch * num_samples + index`. The order of the draws is a pure
function of the seed. The augmentation of a draw is a pure function of the seed and the draw.

Damaged samples: whether they end a run, which were skipped, and the warnings about them.
"""

from __future__ import annotations

import hashlib
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch, Tensors, map_tensors, tensors_of
from hydrant.clock import Steps
from hydrant.errors import ConfigError, log
from hydrant.files.plain_values import leaves

MAX_DAMAGED_IN_A_ROW = 100
"""This many damaged samples in a row mean that the folder is gone or that the transform fails."""


@dataclass
class DamagedSamples:
    """Whether damaged samples are skipped, and those that this process has skipped."""

    skip: bool = False
    remedy: str = ""  # the end of the error message where they are not skipped
    is_rank_zero: bool = True  # only rank 0 logs
    _messages: dict[str, str] = field(default_factory=dict[str, str])  # by name of the sample

    @property
    def num_damaged(self) -> int:
        return len(self._messages)

    def record(self, messages: Mapping[str, str]) -> None:
        """Record skipped samples, message by name. Rank 0 logs each of them once."""
        new = {name: message for name, message in messages.items() if name not in self._messages}
        self._messages |= new
        for message in new.values() if self.is_rank_zero else ():
            log.warning("skipped: %s", message)

    def merge_ranks(self, all_gather: Callable[[Mapping[str, str]], Sequence[Mapping[str, str]]]) -> None:
        """Record on rank 0 what the other ranks skipped. All ranks call it."""
        for messages in all_gather(self._messages) if self.skip else ():
            if self.is_rank_zero:
                self.record(messages)


@dataclass(frozen=True)
class StreamSpec:
    """The part of the sample stream that this rank reads, the sizes of its batches, its device and number format."""

    seed: int
    batch_sizes: Steps[int]  # samples of each update, over all ranks
    micro_batch_size: int
    rank: int
    world_size: int
    device: torch.device
    doubles: torch.dtype = torch.float32  # what float64 becomes, as which Python's numbers are collated

    def num_micro_steps(self, num_updates: int) -> int:
        """Return the micro-batches of each rank in the update after `num_updates` completed ones."""
        return self.batch_sizes.value(num_updates) // (self.micro_batch_size * self.world_size)

    def positions(self, num_updates: int) -> range:
        """Return the position in the endless stream at which each micro-batch of this rank starts, for one update.

        The samples of an update do not depend on the number of ranks or micro-batches.
        """
        start, length = self.batch_sizes.total(num_updates), self.batch_sizes.value(num_updates)
        first = start + self.rank * self.micro_batch_size
        return range(first, start + length, self.world_size * self.micro_batch_size)


def rounded(tree: Tensors, doubles: torch.dtype) -> Tensors:
    """Return float64 as `doubles`, and all else as it is."""
    if doubles is torch.float64:
        return tree
    return map_tensors(lambda tensor: tensor.to(doubles) if tensor.dtype is torch.float64 else tensor, tree)


ON_HOST = StreamSpec(0, Steps.constant(1), 1, 0, 1, torch.device("cpu"))
"""One rank that reads on the host."""


class Stream(Protocol):
    """The training samples of one rank, by update."""

    def micro_batches(self, num_updates: int) -> Iterable[Batch]:
        """Return the micro-batches of the update after `num_updates` completed ones, the same at every call."""
        ...

    def close(self) -> None:
        """Stop the workers, if there are any."""
        ...


@runtime_checkable
class PositionedStream(Stream, Protocol):
    """A stream whose samples are not a function of seed and update. Checkpoints hold its position."""

    def state_dict(self, num_updates: int) -> dict[str, Any]:
        """Return the position of this rank after `num_updates` completed updates."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Mixing(Protocol):
    """Mixes the samples of a micro-batch. Built as `mixing(num_classes, micro_batch_size)`.

    One that is false changes nothing. With an attribute `needs_classes` that is true, each target must be a class.
    """

    def __call__(self, batch: Batch, *position: int) -> Batch:
        """Return the mixed micro-batch. Random numbers are a function of `position` (seed, update, micro-batch)."""
        ...


class NoMixing:
    """Leaves samples as they are."""

    def __init__(self, num_classes: int, micro_batch_size: int) -> None:
        del num_classes, micro_batch_size

    def __bool__(self) -> bool:
        return False

    def __call__(self, batch: Batch, *position: int) -> Batch:
        del position
        return batch


def digest_of_samples(batches: Iterable[Batch]) -> str:
    """Return a hash of the numbers of samples."""
    content = hashlib.sha256()
    for batch in batches:
        for tensor in (*tensors_of(batch.inputs), *tensors_of(batch.targets)):
            content.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
    return content.hexdigest()


Indices = range | np.ndarray
"""Indices of samples; an array is int64, shape (N,)."""


def select(samples: Indices, indices: Indices) -> Indices:
    """Return the samples at these places of `samples`.

    >>> select(range(100, 200), range(3)), select(range(100, 200), np.array([5, 1]))
    (range(100, 103), array([105, 101]))
    """
    if isinstance(samples, range) and isinstance(indices, range):
        return samples[indices.start : indices.stop : indices.step]
    chosen = np.asarray(indices)
    if isinstance(samples, range) and chosen.size and chosen.min() >= 0 and chosen.max() < len(samples):
        return samples.start + samples.step * chosen  # as an array, the range could fill the memory
    return np.asarray(samples)[chosen]


def num_first(key: str, indices: Indices) -> int:
    """Return n of the samples `range(n)`, of data of which only the first can be taken. `key` names them.

    Raises:
        ConfigError: other samples are asked for.
    """
    count = len(indices)
    if not isinstance(indices, range) or indices != range(count):
        message = "is a stream, of which only the first samples can be taken"
        raise ConfigError(key, message, remedy="folds need data=dataset")
    return count


class Source(Protocol):
    """A map-style set of samples."""

    @property
    def num_samples(self) -> int: ...

    def stream(self, spec: StreamSpec) -> Stream:
        """Return the endless shuffled training stream of one rank."""
        ...

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterable[Batch]:
        """Return the samples of this rank once, in order, without augmentation. The last batch may be smaller."""
        ...

    def subset(self, indices: Indices) -> Source:
        """Return a source of these samples, in this order. The first n samples are `range(n)`.

        A source that cannot read a sample by its index gives a `range(n)`, and refuses others with a ConfigError.
        """
        ...


@runtime_checkable
class PositionedSource(Source, Protocol):
    """Samples that are read in their order only: their streams are `PositionedStream`s.

    Attributes:
        key: the config key of the samples, for messages.
        has_state: whether a stream can begin elsewhere than at the first sample; else no run continues with it.
        first_state: the position before the first sample; None without a state.
        is_divided: whether each rank reads samples of its own.
    """

    key: str
    has_state: bool
    first_state: Any
    is_divided: bool

    def rewind(self) -> None:
        """Go back to the first position, if there is a state."""
        ...


@dataclass(frozen=True)
class Reader:
    """Reads inputs that are in no split, for predictions. They are prepared as in an evaluation.

    The sources that it returns need no targets, which may be `()`.

    Args:
        files: returns the samples in these files, in their order.
        suffixes: the endings of such files in lower case, such as `.png`; empty: any.
        is_sample_per_file: whether each file is one sample; else one file holds many.
        tensors: returns the samples of inputs in memory, (N, ...) each.
    """

    files: Callable[[Sequence[Path]], Source] | None = None
    suffixes: tuple[str, ...] = ()
    is_sample_per_file: bool = True
    tensors: Callable[[Tensors], Source] | None = None


@dataclass(frozen=True)
class Data:
    """A data set: a source for each split, and the shapes that a model needs, if they are defined.

    Args:
        train: the samples to train on.
        val: the main validation set. It may be empty, if folds are cut from the training set.
        input_shape: the shape of a sample's input.
        num_classes: the number of classes of a classification.
        damaged: the samples that cannot be read, shared by all sources.
        extra_val: further validation sets by name, evaluated together with `val`.
        test: evaluated only on request.
        class_names: the name of each class.
        target_names: the name of each number of a target that has several.
        reader: reads inputs that are in no split; None: only splits can be predicted.
        in_target_units: undoes the standardization of targets, in them and in predictions; None: there is none.
        with_statistics_of: returns the data, prepared with the statistics (such as means) of these training samples
            alone, so that the samples of a fold stay unseen; None: the data need no statistics.
        statistics: what prepares the samples and was taken from the training samples, as lists, dicts, texts and
            numbers. Checkpoints hold it.
        with_statistics: returns the data, prepared with the `statistics` of a checkpoint.
        files: the file of each split, or a folder of a few files, by its key below `data`: `train`, `extra_val.night`.
            By a digest of it, a run that continues and `compare` know that the content has changed.
    """

    train: Source
    val: Source
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    damaged: DamagedSamples = field(default_factory=DamagedSamples)
    extra_val: Mapping[str, Source] = field(default_factory=dict[str, Source])
    test: Source | None = None
    class_names: tuple[str, ...] | None = None
    reader: Reader | None = None
    in_target_units: Callable[[Tensor], Tensor] | None = None
    with_statistics_of: Callable[[Indices], Data] | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    with_statistics: Callable[[Mapping[str, Any]], Data] | None = None
    target_names: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])

    def __post_init__(self) -> None:
        splits = {"train": self.train, "val": self.val, "test": self.test, **self.extra_val}
        for name, source in splits.items():
            if source is not None and not hasattr(source, "batches"):
                needed = "a Source; of a map-style data set, hydrant.data.dataset_source(data_set) makes one"
                raise ConfigError("data", f"{name} is a {type(source).__name__}, but must be {needed}")
        names, count = self.class_names, self.num_classes
        if names is not None and count is not None and len(names) != count:
            raise ConfigError("data.class_names", f"{len(names)} names are given for {count} classes")
        if double := next((name for name, uses in Counter(names).items() if uses > 1), None):
            message = f"two classes are named {double!r}, so their numbers would have one name"
            raise ConfigError("data.class_names", message, remedy="give different names")

    def batch_for_flops(self, batch: Batch) -> Batch:
        """Return the samples whose FLOPs count: others of this shape, if the content of samples changes the number."""
        return batch


def changed_statistics(before: Any, now: Any, place: str = "data") -> str:
    """Return where two statistics of training samples differ, for messages; "" if nowhere.

    Machines round sums differently: relative to a number, or to its scale. That of a `mean` is the `std` beside it.

    >>> changed_statistics({"mean": {"x": 0.1}}, {"mean": {"x": 0.1 + 1e-12}})
    ''
    >>> changed_statistics({"mean": {"x": 0.1}}, {"mean": {"x": 0.2}})
    'data.mean.x was 0.1 and is now 0.2'
    >>> changed_statistics({"colours": ["blue", "red"]}, {"colours": ["blue", "green", "red"]})
    "data.colours.1 was 'red' and is now 'green'"
    """
    old, new = dict(leaves(before, place)), dict(leaves(now, place))
    for key in {**old, **new}:
        one, other = old.get(key), new.get(key)
        if isinstance(one, float) and isinstance(other, float):
            scale = old.get(key.replace(f"{place}.mean.", f"{place}.std.", 1), 0.0)
            if math.isclose(one, other, rel_tol=1e-9, abs_tol=max(1e-12, 1e-9 * scale)):
                continue
        if one != other:
            shown = ["missing" if value is None else reprlib.repr(value) for value in (one, other)]
            return f"{key} was {shown[0]} and is now {shown[1]}"
    return ""


def check_shapes(data: Data, input_shape: Sequence[int] | None, num_classes: int) -> Data:
    """Return `data` if it has the shapes of the config, which the config of the model refers to; None: any shape.

    Raises:
        ConfigError: there are others.
    """
    shape = None if input_shape is None else [*input_shape]
    given = {"input_shape": shape, "num_classes": num_classes}
    actual = {
        "input_shape": None if shape is None else list(data.input_shape or ()),
        "num_classes": data.num_classes,
    }
    for key in given:
        if given[key] != actual[key]:
            message = f"{given[key]} is configured, but the data have {actual[key]}"
            raise ConfigError(f"data.{key}", message, remedy="use that")
    return data


def check_normalization(mean: Sequence[float], std: Sequence[float], num_channels: int) -> None:
    """Check the `mean` and `std` by which pixels are normalized: a number for each channel.

    Raises:
        ConfigError: another number of them.
    """
    for key, values in {"mean": mean, "std": std}.items():
        if len(values) != num_channels:
            needs = f"a number for each of {num_channels} channels"
            raise ConfigError(f"data.{key}", needs=needs, got=list(values))


def labels_of(source: Source) -> np.ndarray | None:
    """Return the class of each sample of a source, shape (num_samples,); None if the source does not know it."""
    return getattr(source, "labels", None)


def as_labels(targets: object, num_samples: int) -> np.ndarray | None:
    """Return targets as labels; None if they are not one integer for each sample.

    >>> as_labels([1, 0, 1], 3), as_labels([0.5, 1.0], 2)
    (array([1, 0, 1]), None)
    """
    if not isinstance(targets, (list, tuple, np.ndarray, torch.Tensor)) or len(targets) != num_samples:
        return None
    if isinstance(targets, torch.Tensor):
        if targets.is_floating_point() or targets.is_complex():  # NumPy lacks some of these types
            return None
        targets = targets.cpu()
    try:
        labels = np.asarray(targets)
    except ValueError:  # lists of several lengths
        return None
    return labels if labels.ndim == 1 and labels.dtype.kind in "iu" else None


def check_same_classes(split: str, names: Sequence[str] | None, learned: Sequence[str] | None) -> None:
    """Check that the numbers of the classes of a split mean what they mean in training, where both have names.

    Raises:
        ConfigError: a number has another name, or none in training.
    """
    for number, name in enumerate(names or ()):
        there = [name] if learned is None else learned[number : number + 1]
        if [name] != [*there]:
            message = f"class {number} of {split} is {name!r}, and in training {[*there] or 'no class'}"
            remedy = "give all splits the classes of the training samples, in their order"
            raise ConfigError("data", message, remedy=remedy)


@dataclass
class SampleOrder:
    """The endless stream of draws: a seeded permutation of all samples for each epoch."""

    seed: int
    num_samples: int
    device: torch.device
    _epochs: dict[int, Tensor] = field(default_factory=dict)  # draws of the current epochs

    def draws(self, position: int, count: int) -> Tensor:
        """Return the draws at positions `[position, position + count)`, int64, shape (count,), on `device`."""
        parts = []
        while count > 0:
            epoch, offset = divmod(position, self.num_samples)
            part = self._epoch(epoch)[..., offset : offset + count]
            parts.append(part)
            position, count = position + part.shape[-1], count - part.shape[-1]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def permutation(self, epoch: int) -> Tensor:
        """Return the indices of the samples of an epoch in their order, on the host."""
        return seeding.permutation(self.seed, epoch, self.num_samples)

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs = {e: d for e, d in self._epochs.items() if e >= epoch - 1}
            self._epochs[epoch] = to_device(self.permutation(epoch) + epoch * self.num_samples, self.device)
        return self._epochs[epoch]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device without waiting for the work that is queued there."""
    if device.type == "cpu":
        return tensor
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def batch_ranges(num_samples: int, batch_size: int, rank: int, world_size: int) -> Iterator[range]:
    """Yield the index ranges of the batches of `rank` in one pass. Together the ranks cover every sample once.

    >>> list(batch_ranges(10, 4, rank=0, world_size=2)), list(batch_ranges(10, 4, rank=1, world_size=2))
    ([range(0, 4), range(8, 10)], [range(4, 8)])
    """
    for start in range(rank * batch_size, num_samples, world_size * batch_size):
        yield range(start, min(start + batch_size, num_samples))
