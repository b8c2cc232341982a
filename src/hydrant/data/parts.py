"""The sources of a data set, made from the config of each split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict, TypeVar

from hydrant.data.base import Source

T = TypeVar("T")


class Parts(TypedDict):
    """The arguments of `Data` that are sources."""

    train: Source
    val: Source
    extra_val: Mapping[str, Source]
    test: Source | None


def make_parts(
    make: Callable[[str, T], Source], *, train: T, val: T | None, test: T | None, extra_val: Mapping[str, T]
) -> Parts:
    """Return the sources that `make(name, part)` makes of the parts of a config.

    The name is `train`, `val`, `test` or `extra_val.<name>`. Without `val`, the validation set is empty, which only a
    run with folds allows.
    """
    whole = make("train", train)
    return {
        "train": whole,
        "val": whole.subset(range(0)) if val is None else make("val", val),
        "extra_val": {name: make(f"extra_val.{name}", part) for name, part in extra_val.items()},
        "test": None if test is None else make("test", test),
    }
