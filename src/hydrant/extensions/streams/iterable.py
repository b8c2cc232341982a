"""Data that are read in one direction only: an iterable of the user's, whose position checkpoints hold.

Data sets of the library `datasets` by Hugging Face, which are read by their index, or in their order too.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch, Tensors, map_tensors, tensors_of, whole_batch, with_tensors
from hydrant.clock import Steps
from hydrant.data import Data, Indices, Source, StreamSpec, base, workers
from hydrant.data.dataset import as_pair, is_map_style, make_parts, map_style_source, shapes, stack, to_tensor
from hydrant.data.in_memory import DeviceStream, InMemorySource, copies_to
from hydrant.data.loader import Collate, LoaderSource, Transform, collated
from hydrant.errors import ConfigError, DataError, HydrantError, log, suggestion
from hydrant.extensions.streams.hugging_face_splits import HuggingFaceSplit, load_splits
from hydrant.files.plain_values import NotNegativeInt, Positive, PositiveInt, RatioBelowOne

_END = object()


def stream(
    *,
    train: Any,
    val: Any,
    test: Any,
    extra_val: Mapping[str, Any],
    num_samples: PositiveInt | None,
    num_val_samples: PositiveInt | None,
    target: str | None,
    collate: Collate | None,
    input_shape: Sequence[int] | None,
    num_classes: int | None,
    num_workers: Literal[0, 1],
    divided: bool,
) -> Data:
    """Return data whose training samples are read from an iterable, in its order, or made by a function.

    Args:
        train: an iterable of items as `dataset` takes them. When it ends, it is iterated again. If it has `state_dict`
            and `load_state_dict`, a run can be resumed exactly: `state_dict()` describes which item comes next. Or a
            function, as `FunctionSource` explains, which no process reads ahead.
        val, test: a map-style data set, or an iterable or a function whose first `num_val_samples` items are used; they
            are held in memory. `test` may be None.
        extra_val: further validation sets like `val`, by name.
        num_samples: how many samples count as an epoch, in durations such as `10ep`. None: the length of `train`, or
            its attribute `num_samples`; so it is for `val` and `test`.
        target, collate, input_shape, num_classes: see `dataset`.
        num_workers: 1: a process per rank reads ahead; 0: the training process reads.
        divided: True: `train` gives each rank items of its own.

    Raises:
        ConfigError: `train` cannot be iterated, or has no length and `num_samples` is missing; so for `val`.
    """

    def source(
        key: str, items: Any, number: int | None, *, is_divided: bool
    ) -> IterableSource | FunctionSource:
        if number is None:
            number = len(items) if hasattr(items, "__len__") else getattr(items, "num_samples", None)
        if number is None:
            message = f"{key} is a {type(items).__name__} without a length"
            raise ConfigError(number_key(key), message, remedy="give the number of its samples")
        if callable(items) and not hasattr(items, "__iter__"):
            return FunctionSource(items, number, target, key)
        return IterableSource(items, number, target, collate, num_workers, key, is_divided=is_divided)

    def evaluated(key: str, items: Any) -> Source:
        if is_map_style(items):
            return map_style_source(key, items, target, collate, num_workers)
        first = source(key, items, num_val_samples, is_divided=False)
        return first.subset(range(first.num_samples))

    return Data(
        source("data.train", train, num_samples, is_divided=divided),
        evaluated("data.val", val),
        **shapes(train, input_shape, num_classes),
        extra_val={name: evaluated(f"data.extra_val.{name}", items) for name, items in extra_val.items()},
        test=None if test is None else evaluated("data.test", test),
    )


class IterableSource:
    """The items of an iterable, in its order: `train` of `stream`, which explains the arguments.

    Every rank reads all items and keeps those of its micro-batches. So the samples of an update are the same on any
    number of ranks. With `is_divided`, the items of each rank are its own, and it keeps all. Random numbers that an
    item draws, from Python, NumPy or torch, are a function of the seed and the number of items before it.

    Raises:
        ConfigError: the items are an iterator, which cannot begin again, without a state.
    """

    def __init__(
        self,
        items: Any,
        num_samples: PositiveInt,
        target: str | None = None,
        collate: Collate | None = None,
        num_workers: Literal[0, 1] = 1,
        key: str = "data.train",
        *,
        is_divided: bool = False,
    ) -> None:
        self._items, self.key = items, key
        self.has_state = hasattr(items, "state_dict") and hasattr(items, "load_state_dict")
        if not self.has_state and isinstance(items, Iterator):
            message = f"a {type(items).__name__} cannot begin again; __iter__ must return a new iterator"
            raise ConfigError(key, message)
        self.first_state = self.state()
        self.num_readings = 0  # how often this process has begun to read
        self.num_samples, self.target = num_samples, target
        self.collate, self.num_workers, self.is_divided = collate or stack, num_workers, is_divided
        self.rounds_doubles = collate is None

    def stream(self, spec: StreamSpec) -> IterableStream:
        if self.is_divided and spec.world_size > 1:
            sizes = tuple(size // spec.world_size for size in spec.batch_sizes.values)
            seed, steps = seeding.hash_of(spec.seed, spec.rank), Steps(spec.batch_sizes.starts, sizes)
            spec = replace(spec, seed=seed, batch_sizes=steps, rank=0, world_size=1)
        return IterableStream(self, spec)

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterable[Batch]:
        return self.subset(range(self.num_samples)).batches(spec, batch_size)

    def subset(self, indices: Indices) -> LoaderSource:
        """Return the first items, held in memory.

        Raises:
            ConfigError: other items are asked for, or more than there are.
        """
        key, count = self.key, base.num_first(self.key, indices)
        with seeding.kept_generators():
            items = self._seeded(self._restarted(self.first_state), seed=0, start=0)
            first = list(itertools.islice(items, count))
        if len(first) < count:
            message = f"{count} samples are needed, but {key} ends after {len(first)}"
            raise ConfigError(number_key(key), message)
        return map_style_source(key, first, self.target, None if self.rounds_doubles else self.collate, 0)

    def state(self) -> Any:
        """Return a copy of the position after the items that were read; None if there is no state."""
        return copy.deepcopy(self._items.state_dict()) if self.has_state else None

    def rewind(self) -> None:
        """Go back to the first position of the items, if they have a state."""
        if self.has_state:
            self._items.load_state_dict(copy.deepcopy(self.first_state))

    def endless(self, state: Any, *, seed: int, start: int) -> Iterator[Any]:
        """Yield items from a position on; without a state from the beginning. When a pass ends, the next one begins.

        The random numbers that an item draws are a function of the seed and the number of the item, which counts from
        `start` on.

        Raises:
            DataError: an item cannot be read, or there are none.
        """
        return self._seeded(self._passes(state), seed=seed, start=start)

    def _restarted(self, state: Any) -> Iterator[Any]:
        self.num_readings += 1
        if self.has_state:
            self._items.load_state_dict(copy.deepcopy(state))
        yield from self._items

    def _passes(self, state: Any) -> Iterator[Any]:
        items, num_empty = self._restarted(state), 0
        while num_empty < 2:  # from a position at the end of a pass, the rest of it is empty
            num_empty += 1
            for item in items:
                num_empty = 0
                yield item
            items = iter(self._items)
        raise DataError(f"{self.key} gives no items")

    def _seeded(self, items: Iterator[Any], *, seed: int, start: int) -> Iterator[Any]:
        for number in itertools.count(start):
            seeding.seed_host(seed, seeding.SAMPLE, number)
            with workers.reading(f"item {number} of {self.key}", "global_batch_size"):
                item = next(items, _END)
            if item is _END:
                return
            yield item


def number_key(key: str) -> str:
    """Return the key of the number of samples of a stream."""
    return "data.num_samples" if key == "data.train" else "data.num_val_samples"


@dataclass(frozen=True)
class FunctionSource:
    """Samples that a function makes, `num_samples` new ones for each epoch.

    `make(count)` returns the inputs and targets of `count` samples. The random numbers that it draws, from Python,
    NumPy or torch, are a function of the seed and the epoch. So a run resumes exactly, and no process reads ahead.

    Args:
        make: the function.
        num_samples: of an epoch.
        target: the key of a dict that is its target; see `hydrant.data.dataset`.
        key: the config key of the samples, for messages.
    """

    make: Callable[[int], Any]
    num_samples: int
    target: str | None = None
    key: str = "data.train"

    def samples(self, *position: int) -> InMemorySource:
        """Return the samples of an epoch, whose random numbers are a function of `position`."""
        with seeding.kept_generators(), workers.reading(self.key, number_key(self.key)):
            seeding.seed_host(*position)
            made = as_pair(self.make(self.num_samples), self.target, self.key)
        return InMemorySource(*made, (), (), has_pixels=False, rounds_doubles=True)

    def stream(self, spec: StreamSpec) -> DeviceStream:
        epochs = _Epochs(self, spec)
        return DeviceStream(epochs, epochs, spec)

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterable[Batch]:
        return self.subset(range(self.num_samples)).batches(spec, batch_size)

    def subset(self, indices: Indices) -> InMemorySource:
        """Return some samples of an epoch that does not depend on the seed, and that is another for each key."""
        return self.samples(seeding.EVALUATION, *self.key.encode()).subset(indices)


class _Epochs(base.SampleOrder):
    """The samples of a `FunctionSource`, those of each epoch in their order, and the batches of ascending draws."""

    seedless: object = None

    def __init__(self, source: FunctionSource, spec: StreamSpec) -> None:
        super().__init__(spec.seed, source.num_samples, torch.device("cpu"))
        self._spec, self._samples = spec, lru_cache(2)(partial(source.samples, spec.seed, seeding.SAMPLE))

    def permutation(self, epoch: int) -> Tensor:
        del epoch
        return torch.arange(self.num_samples)

    def train_batch(self, draws: Tensor) -> Batch:
        epochs, indices = draws // self.num_samples, (draws % self.num_samples).numpy()
        parts = [self._samples(epoch).subset(indices[epochs == epoch]) for epoch in epochs.unique().tolist()]
        return whole_batch([[Batch(*part.on(self._spec)[:2])] for part in parts])


@dataclass(frozen=True)
class _Update:
    """The micro-batches of one update on one rank, on the host, and the position after all samples of the update."""

    batches: Sequence[tuple[Tensors, Tensors]]
    end: Any

    def pin_memory(self) -> _Update:
        """Called by a DataLoader, if the device is CUDA."""
        return replace(self, batches=map_tensors(Tensor.pin_memory, self.batches))


@dataclass(frozen=True)
class _Position:
    """The position of a stream: the next update, and the state of the items before it."""

    num_updates: int
    state: Any


class _Updates(torch.utils.data.IterableDataset[_Update | HydrantError]):
    """Reads the updates of one rank in order, from a position on."""

    def __init__(
        self, source: IterableSource, spec: StreamSpec, begin: _Position, progress: workers.WorkerProgress
    ) -> None:
        super().__init__()
        self._source, self._spec, self._begin, self._progress = source, spec, begin, progress

    def __iter__(self) -> Iterator[_Update | HydrantError]:
        source, spec = self._source, self._spec
        first = spec.batch_sizes.total(self._begin.num_updates)
        items = source.endless(self._begin.state, seed=spec.seed, start=first)
        for num_updates in itertools.count(self._begin.num_updates):
            with seeding.kept_generators():
                update = self._read(items, num_updates)
            yield update

    def _read(self, items: Iterator[Any], num_updates: int) -> _Update | HydrantError:
        # Errors are returned, because a worker would turn a raised one into a page of traceback.
        spec, source, samples = self._spec, self._source, list[tuple[Any, Any]]()
        size, start = spec.micro_batch_size, spec.batch_sizes.total(num_updates)
        try:
            for n in range(spec.batch_sizes.value(num_updates)):
                self._progress.set(start + n)
                item = next(items)
                if n // size % spec.world_size == spec.rank:
                    samples.append(as_pair(item, source.target, f"item {start + n} of {source.key}"))
            parts = (samples[at : at + size] for at in range(0, len(samples), size))
            doubles = spec.doubles if source.rounds_doubles else torch.float64
            return _Update([collated(source.collate, part, doubles) for part in parts], source.state())
        except HydrantError as error:
            return error
        finally:
            self._progress.set(-1)


class IterableStream:
    """The training stream of one rank over an `IterableSource`.

    The batches of the current update stay on the host, so that an update that is tried again has the same samples. For
    an earlier update, the items are read again from where this stream began.
    """

    def __init__(self, source: IterableSource, spec: StreamSpec) -> None:
        if spec.rank == 0 and not source.has_state:
            log.warning("%s has no state_dict and load_state_dict: this run cannot be resumed", source.key)
        self._source, self._spec, self._copies = source, spec, copies_to(spec.device)
        self._progress = workers.WorkerProgress(source.num_workers)
        self._begin = _Position(0, source.first_state)
        self._num_readings = 0  # of the items, when an update was last read
        self.close()

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        for samples in self._update(num_updates).batches:
            # A copy, because the model may write into it, and an update that is tried again reads it again.
            yield Batch(*with_tensors(samples, self._copies(list(tensors_of(samples)))))

    def close(self) -> None:
        """Stop the worker, which ends when nothing refers to its loader. A later read starts another one."""
        self._iterator: Iterator[_Update | HydrantError] | None = None
        self._update_read: _Update | None = None
        self._before = self._after = self._begin  # the last update that was read

    def state_dict(self, num_updates: int) -> dict[str, Any]:
        """Return the position after `num_updates` completed updates, however many are prepared in advance.

        `num_updates` is that of the last call of `micro_batches`, or one more.
        """
        position = self._after if num_updates == self._after.num_updates else self._before
        assert position.num_updates == num_updates
        return {"num_updates": num_updates, "items": position.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin at a saved position."""
        self._begin = _Position(state["num_updates"], state["items"])
        self.close()

    def _update(self, num_updates: int) -> _Update:
        assert num_updates >= self._begin.num_updates
        if num_updates < self._before.num_updates:
            self.close()
        while self._update_read is None or self._before.num_updates < num_updates:
            self._update_read = self._read_next()
        return self._update_read

    def _read_next(self) -> _Update:
        source = self._source
        # All readers of this process share the position of the items: another one may have moved it.
        is_moved = source.has_state and not source.num_workers and self._num_readings != source.num_readings
        if self._iterator is None or is_moved:
            updates = _Updates(source, self._spec, self._after, self._progress)
            loader = workers.WorkerLoader(updates, source.num_workers, self._spec.device)
            self._iterator = workers.iterate_loader(
                loader, self._progress, f"item {{}} of {source.key}".format
            )
        update = next(self._iterator)
        if isinstance(update, HydrantError):
            raise update
        self._num_readings = source.num_readings
        self._before, self._after = self._after, _Position(self._after.num_updates + 1, update.end)
        return update


PRELOAD = {"hugging_face": ("datasets",)}


def hugging_face(
    *,
    path: str,
    name: str | None,
    options: Mapping[str, Any],
    train: str,
    val: str | None,
    val_ratio: RatioBelowOne,
    split_seed: int,
    test: str | None,
    extra_val: Mapping[str, str],
    inputs: str | list[str] | None,
    target: str | None,
    train_transform: Transform | None,
    eval_transform: Transform | None,
    collate: Collate | None,
    mean: Sequence[float],
    std: Sequence[Positive],
    input_shape: Sequence[int] | None,
    num_classes: int | None,
    num_workers: NotNegativeInt,
    on_error: Literal["fail", "skip"],
) -> Data:
    """Return splits of a data set of Hugging Face, read by worker processes; conf/data/hugging_face.yaml explains more.

    Numbers and lists of numbers become tensors, images uint8 (C, H, W), which are scaled to 0..1 and normalized by
    `mean` and `std` on the device. Texts stay strings, for `collate`.

    Args:
        path, name, options: arguments of `datasets.load_dataset`; or `path` is a folder of `save_to_disk`.
        inputs: a column, which is then the input itself, or a list of columns; None: all except the target. Several
            columns are a dict.

    Raises:
        ConfigError: the data set cannot be loaded, has no such split or column, or other classes in another split.
    """
    base.check_normalization(mean, std, len(mean))
    loaded = load_splits(path, name, options)
    damaged = base.DamagedSamples(on_error == "skip", "; repair it, or skip it with data.on_error=skip")

    named = {"train": train, "val": val, "test": test} | {f"extra_val.{n}": s for n, s in extra_val.items()}
    splits = {key: HuggingFaceSplit.of(loaded, s, key) for key, s in named.items() if s is not None}

    def source(key: str, split: str) -> LoaderSource:
        rows = _rows_of(splits[key].items, inputs, target)
        made = map_style_source(f"data.{key}", rows, None, collate, num_workers, damaged)
        return replace(
            made,
            train_transform=train_transform or made.train_transform,
            eval_transform=eval_transform or made.eval_transform,
            mean=tuple(mean) if rows.is_image else (),
            std=tuple(std) if rows.is_image else (),
        )

    held_out = val_ratio, split_seed
    parts = make_parts(source, train=train, val=val, test=test, extra_val=extra_val, held_out=held_out)
    names = splits["train"].class_names(target)
    for key, split in splits.items():
        base.check_same_classes(f"split {named[key]!r}", split.class_names(target), names)
        if key in ("val", "test") and split.overlaps(splits["train"]):
            log.warning("data.%s=%s: rows of data.train=%s are among these", key, named[key], train)
    data = Data(
        **parts,
        input_shape=None if input_shape is None else tuple(input_shape),
        num_classes=num_classes if names is None else len(names),
        damaged=damaged,
        class_names=names,
    )
    return data if names is None or num_classes is None else base.check_shapes(data, None, num_classes)


def _rows_of(items: Any, inputs: str | Sequence[str] | None, target: str | None) -> _Rows:
    """Return the rows of a split with the columns that are inputs and targets.

    Raises:
        ConfigError: it has no such column.
    """
    names: list[str] = list(items.column_names or ())
    listed = [inputs] if isinstance(inputs, str) else list(inputs or ())
    for key, columns in (("inputs", listed), ("target", [target] if target else [])):
        if unknown := [column for column in columns if column not in names]:
            message = f"there is no column {unknown[0]!r}"
            raise ConfigError(f"data.{key}", message, remedy=suggestion(unknown[0], names, "Columns"))
    chosen = tuple(listed or (name for name in names if name != target))
    columns = list(dict.fromkeys(chosen if target is None else [*chosen, target]))
    images = tuple(name for name in columns if type(items.features[name]).__name__ == "Image")
    numbers = [name for name in columns if name not in images]
    partial = [name for name in numbers if items.data.column(name).null_count]
    return _Rows(
        items.select_columns(numbers).with_format("torch"),
        items.select_columns([*images, *partial]).with_format(None),
        images,
        chosen,
        target,
        isinstance(inputs, str),
    )


@dataclass(frozen=True)
class _Rows:
    """The rows of a split as pairs (input, target)."""

    numbers: Any  # the rows with the columns that are not images, as tensors and strings
    plain: Any  # the rows with the columns of images, as images of Pillow, and those that lack values
    images: tuple[str, ...]  # the names of the columns of images
    inputs: tuple[str, ...]
    target: str | None
    is_single: bool  # the input is a column, not a dict of columns

    @property
    def is_image(self) -> bool:
        """Whether the input is an image."""
        return self.is_single and self.inputs[0] in self.images

    def __len__(self) -> int:
        return len(self.numbers if self.numbers.column_names else self.plain)

    def __getitem__(self, index: int) -> tuple[Tensors, Tensors]:
        row: dict[str, Any] = self.numbers[index] if self.numbers.column_names else {}
        for name, value in (self.plain[index] if self.plain.column_names else {}).items():
            if value is None:
                raise OSError(f"column {name!r} has no value (null)")
            if name in self.images:
                row[name] = to_tensor(value)
        inputs = row[self.inputs[0]] if self.is_single else {name: row[name] for name in self.inputs}
        return inputs, () if self.target is None else row[self.target]
