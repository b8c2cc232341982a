"""The sources of a data set, made from the config of each split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict, TypeVar

import numpy as np

from hydrant.checks import check_number
from hydrant.data.base import Source
from hydrant.errors import ConfigError

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


def cut_rows(num_rows: int, ratios: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Cut the rows at random into `val` and `test` of these ratios; `train` gets the rest. Indices ascend.

    Both are ends of one order, so which rows test does not depend on the ratio of those that validate.

    Raises:
        ConfigError: a part has no rows.
    """
    for split, ratio in ratios.items():
        check_number(f"data.{split}_ratio", ratio, least=0, below=1)
    num_val, num_test = (int(np.ceil(ratios[split] * num_rows)) for split in ("val", "test"))
    if num_val + num_test >= num_rows:
        shown = ", ".join(f"data.{split}_ratio={ratio}" for split, ratio in ratios.items())
        raise ConfigError("data.val_ratio", f"{num_rows} samples with {shown} leave none to train on")
    order = np.random.RandomState(seed).permutation(num_rows)
    val, train, test = (np.sort(part) for part in np.split(order, [num_val, num_rows - num_test]))
    return {"val": val, "test": test, "train": train}
