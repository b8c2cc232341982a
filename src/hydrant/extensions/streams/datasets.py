"""Data sets of the library `datasets` by Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hydrant.batch import Tensors
from hydrant.data.base import DamagedSamples, Data, check_normalization, check_num_classes, check_same_classes
from hydrant.data.dataset import cut_rows, make_parts, map_style_source, to_tensor
from hydrant.data.loader import Collate, LoaderSource, Transform
from hydrant.errors import ConfigError, log, suggestion
from hydrant.extensions.streams.hugging_face_splits import HuggingFaceSplit, load_splits
from hydrant.files.plain_values import NotNegativeInt, Positive

PRELOAD = {"hugging_face": ("datasets",)}

_TEXTS = ("string", "large_string")


def hugging_face(
    *,
    path: str,
    name: str | None,
    options: Mapping[str, Any],
    train: str,
    val: str | None,
    val_ratio: float,
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
    check_normalization(mean, std, len(mean))
    loaded = load_splits(path, name, options)
    damaged = DamagedSamples(on_error == "skip", "; repair it, or skip it with data.on_error=skip")

    named = {"train": train, "val": val, "test": test} | {f"extra_val.{n}": s for n, s in extra_val.items()}
    splits = {
        key: HuggingFaceSplit.of(loaded, split, key) for key, split in named.items() if split is not None
    }

    def source(key: str, split: str) -> LoaderSource:
        rows = _rows_of(splits[key].items, inputs, target, has_collate=collate is not None)
        made = map_style_source(f"data.{key}", rows, None, collate, num_workers, damaged)
        return replace(
            made,
            train_transform=train_transform or made.train_transform,
            eval_transform=eval_transform or made.eval_transform,
            mean=tuple(mean) if rows.is_image else (),
            std=tuple(std) if rows.is_image else (),
        )

    parts = make_parts(source, train=train, val=val, test=test, extra_val=extra_val)
    if val is None:
        rows = cut_rows(parts["train"].num_samples, {"val": val_ratio, "test": 0.0}, split_seed)
        whole = parts["train"]
        parts["train"], parts["val"] = whole.subset(rows["train"]), whole.subset(rows["val"])
    names = splits["train"].class_names(target)
    for key, split in splits.items():
        check_same_classes(f"split {named[key]!r}", split.class_names(target), names)
        if key in ("val", "test") and split.overlaps(splits["train"]):
            log.warning("data.%s=%s: rows of data.train=%s are among these", key, named[key], train)
    data = Data(
        **parts,
        input_shape=None if input_shape is None else tuple(input_shape),
        num_classes=num_classes if names is None else len(names),
        damaged=damaged,
        class_names=names,
    )
    return data if names is None or num_classes is None else check_num_classes(data, num_classes)


def _rows_of(
    items: Any, inputs: str | Sequence[str] | None, target: str | None, *, has_collate: bool
) -> _Rows:
    """Return the rows of a split with the columns that are inputs and targets.

    Args:
        has_collate: something else than torch makes their batches.

    Raises:
        ConfigError: it has no such column, or no length; its targets are texts.
    """
    names: list[str] = list(items.column_names or ())
    listed = [inputs] if isinstance(inputs, str) else list(inputs or ())
    for key, columns in (("inputs", listed), ("target", [target] if target else [])):
        if unknown := [column for column in columns if column not in names]:
            message = f"there is no column {unknown[0]!r}"
            raise ConfigError(f"data.{key}", message, remedy=suggestion(unknown[0], names, "Columns"))
    chosen = tuple(listed or (name for name in names if name != target))
    columns = list(dict.fromkeys(chosen if target is None else [*chosen, target]))
    if target and not has_collate and getattr(items.features[target], "dtype", "") in _TEXTS:
        remedy = "number its classes by class_encode_column, save_to_disk that copy, or give data.collate"
        raise ConfigError("data.target", f"column {target!r} holds texts", remedy=remedy)
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
