"""Data of your own: any map-style `torch.utils.data.Dataset`, tensors in files, or a function that makes batches.

The sources of a data set, made from the config of each split. Tensors in files are read without code that they might
hold.

The pixels of Pillow's images of every mode, as bytes: 16 bits are scaled by their range.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
import torch

from hydrant import seeding
from hydrant.batch import Batch, Tensors, map_tensors, whole_batch
from hydrant.data import base, workers
from hydrant.data.base import DamagedSamples, Data, Reader, Source
from hydrant.data.in_memory import InMemorySource, tensor_reader
from hydrant.data.loader import Collate, LoaderSource
from hydrant.errors import ConfigError, DataError, no_file, suggestion, typed_line
from hydrant.files.plain_values import NotNegativeInt, Positive, RatioBelowOne, check_value, declared_by

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")


def make_parts(
    make: Callable[[str, T], Source],
    *,
    train: T,
    val: T | None,
    test: T | None,
    extra_val: Mapping[str, T],
    held_out: tuple[float, int] = (0.0, 0),
) -> dict[str, Any]:
    """Return the sources that `make(name, part)` makes of the parts of a config.

    The name is `train`, `val`, `test` or `extra_val.<name>`. Without `val`, the validation set is a ratio of the
    training set, which `held_out` has with the seed of its choice; only a run with folds allows an empty one.

    Raises:
        ConfigError: the ratio is out of range, or leaves no samples to train on.
    """
    whole, rows = make("train", train), dict[str, np.ndarray]()
    if val is None and held_out[0]:
        rows = cut_rows(whole.num_samples, {"val": held_out[0], "test": 0.0}, held_out[1])
    return {
        "train": whole.subset(rows["train"]) if rows else whole,
        "val": whole.subset(rows.get("val", range(0))) if val is None else make("val", val),
        "extra_val": {name: make(f"extra_val.{name}", part) for name, part in extra_val.items()},
        "test": None if test is None else make("test", test),
    }


def cut_rows(num_rows: int, ratios: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Cut the rows at random into `val` and `test` of these ratios; `train` gets the rest. Indices ascend.

    Both are ends of one order, so which rows test does not depend on the ratio of those that validate.

    Raises:
        ConfigError: a part has no rows.
    """
    for split, ratio in ratios.items():
        check_value(f"data.{split}_ratio", RatioBelowOne, ratio)
    num_val, num_test = (int(np.ceil(ratios[split] * num_rows)) for split in ("val", "test"))
    if num_val + num_test >= num_rows:
        shown = ", ".join(f"data.{split}_ratio={ratio}" for split, ratio in ratios.items())
        raise ConfigError("data.val_ratio", f"{num_rows} samples with {shown} leave none to train on")
    order = np.random.RandomState(seed).permutation(num_rows)
    val, train, test = (np.sort(part) for part in np.split(order, [num_val, num_rows - num_test]))
    return {"val": val, "test": test, "train": train}


def load_tensors(path: Path) -> Any:
    """Return what a tensor file holds: of a `.pt` file anything, of `.npz` a dict of tensors, of `.npy` a tensor.

    Raises:
        DataError: it cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".pt":
            return torch.load(path, map_location="cpu", weights_only=True)
        loaded = np.load(path, allow_pickle=False)
        if suffix == ".npy":
            return torch.from_numpy(loaded)
        with loaded as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except Exception as error:  # a library may raise anything for a file of another kind
        raise DataError(f"{path} cannot be read: {typed_line(error)}") from error


def dataset(
    *,
    train: Any,
    val: Any,
    val_ratio: RatioBelowOne,
    split_seed: int,
    test: Any,
    extra_val: Mapping[str, Any],
    target: str | None,
    collate: Collate | None,
    input_shape: Sequence[int] | None,
    num_classes: int | None,
    class_names: Sequence[str] | None,
    num_workers: NotNegativeInt,
    in_memory: bool,
    on_error: Literal["fail", "skip"],
    read: Callable[[Sequence[Path]], Any] | None,
) -> Data:
    """Return the samples of map-style data sets, read by worker processes.

    An item is a pair (input, target), whose parts are tensors, numbers or nested dicts, tuples and lists of them; or a
    dict. Integers stay integers. Random numbers that an item draws in training, from Python, NumPy or torch, are a
    function of the seed, the epoch and the sample.

    Args:
        train, val, test: with `__len__` and `__getitem__`. None: no such set. If a set has `targets` that are classes,
            like those of torchvision, folds have the same ratio of each class.
        val_ratio, split_seed: without `val`, the ratio of the training set that validates, and the seed of its choice.
        extra_val: further validation sets by name.
        target: the key of a dict that is its target; None: pairs, or dicts for a task that takes its targets from them.
            The rest of a dict is the input.
        collate: makes a batch of a list of pairs (input, target); None: stack them. That is torch's `default_collate`,
            but doubles become float32 unless precision=fp64, and images of Pillow, as the data sets of
            torchvision return them without a transform, floats (C, H, W) in 0..1.
        input_shape, num_classes: for models that need them. None: those of `train`, see `declared_by`.
        class_names: the name of each class.
        in_memory: True: each item is read once and held, because it never changes.
        on_error: for a sample that cannot be read: `fail` ends the run, `skip` logs a warning and uses the next one in
            training.
        read: makes a data set of a list of files, for `hydrant predict`. An item is the input of a file.

    Raises:
        ConfigError: a data set is not map-style, has no samples, or other `classes` than that of training.
    """
    damaged = DamagedSamples(on_error == "skip", "; repair it, or skip it with data.on_error=skip")

    def source(name: str, items: Any, *, has_targets: bool = True) -> LoaderSource:
        key, is_held = f"data.{name}", in_memory and has_targets  # what is predicted is read once anyway
        return map_style_source(
            key, items, target, collate, num_workers, damaged, is_held, has_targets=has_targets
        )

    named = {"data.val": val, "data.test": test, **{f"data.extra_val.{n}": x for n, x in extra_val.items()}}
    for name, items in named.items():
        base.check_same_classes(name, _class_names(items), _class_names(train))
    reader = None if read is None else Reader(lambda files: source("read", read(files), has_targets=False))
    return Data(
        **make_parts(
            source, train=train, val=val, test=test, extra_val=extra_val, held_out=(val_ratio, split_seed)
        ),
        **shapes(train, input_shape, num_classes),
        damaged=damaged,
        reader=reader,
        class_names=None if class_names is None else tuple(class_names),
    )


def shapes(train: Any, input_shape: Sequence[int] | None, num_classes: int | None) -> dict[str, Any]:
    """Return the `input_shape` and `num_classes` of `Data`; where they are None, those of the training set."""
    declared = declared_by(train)
    shape = declared["input_shape"] if input_shape is None else input_shape
    return {
        "input_shape": None if shape is None else tuple(shape),
        "num_classes": declared["num_classes"] if num_classes is None else num_classes,
    }


def dataset_source(
    items: Any,
    *,
    target: str | None = None,
    collate: Collate | None = None,
    num_workers: int = 0,
    in_memory: bool = False,
) -> LoaderSource:
    """Return the samples of a map-style `torch.utils.data.Dataset` as a source, for a `Data` made in Python.

    The arguments are those of `dataset`. By default the training process reads, because worker processes cannot always
    import the classes of a notebook.

    Raises:
        ConfigError: the data set is not map-style, or has no samples.
    """
    return map_style_source("data", items, target, collate, num_workers, None, in_memory)


def map_style_source(
    key: str,
    items: Any,
    target: str | None,
    collate: Collate | None,
    num_workers: int,
    damaged: DamagedSamples | None = None,
    in_memory: bool = False,
    *,
    has_targets: bool = True,
) -> LoaderSource:
    """Return the samples of a map-style data set; the arguments are those of `dataset`, and the key of the items.

    Without `has_targets`, an item is an input.

    Raises:
        ConfigError: it is not map-style, or has no samples.
    """
    if not is_map_style(items):
        message = f"a {type(items).__name__} has no __len__ and __getitem__; a map-style data set is needed"
        remedy = "data=stream reads a training set in its order"
        if hasattr(items, "dataset"):
            remedy = "give its .dataset; global_batch_size is the size of a batch"
        raise ConfigError(key, message, remedy=remedy)
    if not len(items):
        raise ConfigError(key, "has no samples; check its arguments")
    name_of = f"sample {{}} of {key}".format
    damaged = DamagedSamples() if damaged is None else damaged
    is_held = in_memory and collate is None and not damaged.skip
    read = cache(items.__getitem__) if in_memory and not is_held else items.__getitem__
    samples = _Pairs(items, target, has_targets, read)
    source = LoaderSource(samples, _same, _same, (), (), 0 if in_memory else num_workers, name_of, damaged)
    return replace(source, collate=collate or stack, rounds_doubles=collate is None, is_held=is_held)


def _class_names(items: Any) -> Sequence[str] | None:
    """Return the names in the attribute `classes`, which torchvision's data sets have; None if there are none."""
    names = getattr(items, "classes", None)
    is_known = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    return cast("Sequence[str]", names) if is_known else None


def is_map_style(items: Any) -> bool:
    """Return whether an object has samples that are read by their index."""
    return hasattr(items, "__len__") and hasattr(items, "__getitem__")


def _same(sample: Any) -> Any:
    return sample


def stack(samples: list[tuple[Tensors, Tensors]]) -> tuple[Tensors, Tensors]:
    """Make a batch as torch's `default_collate` does. Images of Pillow become pixels in 0..1."""
    # torch makes no tensor of uint64, in which some libraries number classes
    inputs = (to_tensor(x).float() / 255 if is_picture(x) else x for x, _ in samples)
    targets = (int(y) if isinstance(y, np.unsignedinteger) else y for _, y in samples)
    return tuple(torch.utils.data.default_collate(list(zip(inputs, targets, strict=True))))


_OF_16_BITS = ("PNG", "PPM")
"""The file formats whose mode `I` has a range of 16 bits: Pillow opens 16 bits as `I`, or scales other ranges to
65535."""


def is_picture(value: object) -> bool:
    """Return whether a value is an image of Pillow, without importing it."""
    return "PIL.Image" in sys.modules and isinstance(value, sys.modules["PIL.Image"].Image)


def to_bytes(image: Image) -> Image:
    """Return an image whose channels are bytes, or a palette of such colors.

    Raises:
        ValueError: its mode has no range.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in _OF_16_BITS):
        values = np.asarray(image).astype(np.int64)
        # 65535 is 255, rounded to the nearest.
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        kind = "integers of 32 bits" if image.mode == "I" else "floats"
        message = f"its mode is {image.mode}, {kind}, whose range is not known"
        raise ValueError(f"{message}; save it with 8 or 16 bits, or use data=tensors or data=memmap")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")  # Pillow warns about other conversions
    return image


def to_tensor(image: Image) -> torch.Tensor:
    """Return the bytes of an image, uint8 (C, H, W). C is 1 for gray, 3 for colors, and 1 more with transparency.

    Raises:
        ValueError: its mode has no range.
    """
    image = to_bytes(image)
    if image.mode not in ("L", "LA", "RGB", "RGBA"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class _Pairs:
    """The items of a data set as pairs (input, target)."""

    items: Any
    target: str | None
    has_targets: bool
    read: Callable[[int], Any]  # returns the item of an index

    def __len__(self) -> int:
        return len(self.items)

    @property
    def targets(self) -> Any:
        """The `targets` of the items, if they have this attribute, as in torchvision's data sets."""
        return getattr(self.items, "targets", None)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        item = self.read(index)
        return as_pair(item, self.target, f"sample {index}") if self.has_targets else (item, ())


def as_pair(item: Any, target: str | None, name: str) -> tuple[Any, Any]:
    """Return the input and the target of an item: a pair, or a dict, whose key `target` is the target.

    Raises:
        ConfigError: it is something else, or has no such key. `name` names the item.
    """
    if isinstance(item, Mapping):
        fields = cast("Mapping[str, Any]", item)
        if target is None:
            return dict(fields), ()
        if target not in fields:
            message = f"no sample has the key {target!r}"
            raise ConfigError("data.target", message, remedy=suggestion(target, fields))
        return {key: value for key, value in fields.items() if key != target}, fields[target]
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return item[0], item[1]
    kind = type(item).__name__ + (f" of {len(item)}" if isinstance(item, (tuple, list)) else "")
    message = f"{name} is a {kind}, but a pair (input, target) or a dict is needed"
    pairs = "give ((x, weight), y) of several inputs, or (x, ()) without a target"
    remedy = f"{pairs}; tensors of all samples are torch.utils.data.TensorDataset(inputs, targets)"
    raise ConfigError("data", message, remedy=remedy)


@dataclass(frozen=True)
class BatchSource:
    """Training batches that a function makes, one for each update and of any size, on one rank.

    Random numbers that the function draws, from Python, NumPy or torch, are those of the seed and the update. So a run
    resumes exactly.

    Args:
        make: returns the inputs and targets of the update after `num_updates` completed ones: `make(num_updates)`.
        num_samples: of an epoch. Durations such as `10ep` count updates of `global_batch_size` samples.

    >>> source = BatchSource(lambda num_updates: (torch.full((3,), num_updates), ()), num_samples=6)
    >>> [batch.inputs.tolist() for batch in source.batches(base.ON_HOST, 3)]
    [[0, 0, 0], [1, 1, 1]]
    """

    make: Callable[[int], Any]
    num_samples: int
    spec: base.StreamSpec = base.ON_HOST  # of this stream of the samples

    def stream(self, spec: base.StreamSpec) -> BatchSource:
        """Return the stream of the only rank.

        Raises:
            ConfigError: an update is divided among ranks or micro-batches.
        """
        if {*spec.batch_sizes.values} != {spec.micro_batch_size}:
            message = "a BatchSource makes the batch of each update whole"
            remedy = "train on one rank, with micro_batch_size=null and one global_batch_size"
            raise ConfigError("data.train", message, remedy=remedy)
        return replace(self, spec=spec)

    def micro_batches(self, num_updates: int) -> list[Batch]:
        """Return the batch of the update after `num_updates` completed ones, on the device of the run."""
        name, device = f"the batch of update {num_updates + 1}", self.spec.device
        with workers.reading(name, "its size"):
            seeding.seed_host(self.spec.seed, seeding.SAMPLE, num_updates)
            made = Batch(*as_pair(self.make(num_updates), None, name))
        if not made.num_samples:
            raise DataError(f"{name} has no samples")
        return [map_tensors(lambda tensor: base.to_device(tensor, device), made)]

    def batches(self, spec: base.StreamSpec, batch_size: int) -> Iterator[Batch]:
        """Yield the first `num_samples` samples, in the batches that are made; the last one is cut."""
        num_samples = num_updates = 0
        while num_samples < self.num_samples:
            with seeding.kept_generators():
                [batch] = replace(self, spec=spec).micro_batches(num_updates)
            left, num_updates = self.num_samples - num_samples, num_updates + 1
            num_samples += batch.num_samples
            if num_updates % spec.world_size == spec.rank:
                is_whole = batch.num_samples <= left
                yield batch if is_whole else map_tensors(lambda tensor, end=left: tensor[:end], batch)

    def subset(self, indices: base.Indices) -> InMemorySource:
        """Return the first samples, held in memory.

        Raises:
            ConfigError: others are asked for.
        """
        num = base.num_first("data", indices)
        return InMemorySource(*whole_batch([[*replace(self, num_samples=num).batches(base.ON_HOST, num)]]))

    def close(self) -> None:
        """Do nothing, because there are no workers."""


def tensors(
    *,
    train: str,
    val: str | None,
    test: str | None,
    extra_val: Mapping[str, str],
    input_shape: Sequence[int] | None,
    num_classes: int | None,
    class_names: Sequence[str] | None,
    mean: Sequence[float],
    std: Sequence[Positive],
) -> Data:
    """Return samples from files, one for each set, held on the device.

    A file holds `inputs` and `targets`: a `.pt` file a dict of both, written by `torch.save`, each a tensor or nested
    dicts, tuples and lists of tensors; an `.npz` file two arrays. The first dimension of every tensor is the sample. A
    tensor of floats or uint8 pixels is normalized by `mean` and `std`: one number, or one for each channel (the second
    dimension). Doubles become float32 unless precision=fp64; integers keep their type, and class indices need int64.

    Raises:
        ConfigError: a file is missing or holds something else.
        DataError: it cannot be read.
    """

    files = dict[str, Path]()

    def source(name: str, file: str) -> InMemorySource:
        inputs, targets = _read(f"data.{name}", files.setdefault(name, Path(file)))
        is_image = isinstance(inputs, torch.Tensor) and inputs.ndim > 1 and (len(mean), len(std)) != (1, 1)
        base.check_normalization(mean, std, inputs.shape[1] if is_image else 1)
        return InMemorySource(inputs, targets, tuple(mean), tuple(std), rounds_doubles=True)

    return Data(
        **make_parts(source, train=train, val=val, test=test, extra_val=extra_val),
        input_shape=None if input_shape is None else tuple(input_shape),
        num_classes=num_classes,
        class_names=None if class_names is None else tuple(class_names),
        reader=tensor_reader(mean, std),
        files=files,
    )


def _read(key: str, path: Path) -> tuple[Tensors, Tensors]:
    if not path.is_file():
        raise no_file(key, path)
    content = load_tensors(path)
    if not isinstance(content, dict) or not {"inputs", "targets"} <= content.keys():
        keys = ", ".join(map(str, content)) if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ConfigError(key, f"{path} holds {keys or 'nothing'}, but inputs and targets are needed")
    return content["inputs"], content["targets"]
