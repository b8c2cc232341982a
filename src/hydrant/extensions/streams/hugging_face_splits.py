"""The splits of data sets of the library `datasets` by Hugging Face, in its own words such as `train[:80%]`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydrant.errors import ConfigError, suggestion, typed_line
from hydrant.installation import require_extra

if TYPE_CHECKING:
    from omegaconf import DictConfig

_UNSAFE = ("pandas",)
"""The formats of `datasets` whose files can execute code."""


def load_splits(path: str, name: str | None, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the splits of a data set by name.

    Raises:
        ConfigError: it cannot be loaded, or has no splits.
    """
    require_extra("datasets", ["datasets"], "data", "data=hugging_face")
    import datasets
    from datasets.exceptions import DatasetGenerationError

    if path in _UNSAFE:
        message = f"{path!r} reads pickles, which may execute code"
        raise ConfigError("data.path", message, remedy="use another format")
    is_saved = any((Path(path) / file).is_file() for file in ("dataset_dict.json", "state.json"))
    try:
        loaded = datasets.load_from_disk(path) if is_saved else datasets.load_dataset(path, name, **options)
    except Exception as error:  # the library raises anything, also of the network
        is_general = isinstance(error, DatasetGenerationError)
        cause = (error.__cause__ or error) if is_general else error
        raise ConfigError("data.path", f"{path} cannot be loaded: {typed_line(cause)}") from error
    if not isinstance(loaded, datasets.DatasetDict):
        message = f"{path} is a {type(loaded).__name__}, but a DatasetDict is needed"
        raise ConfigError("data.path", message, remedy="leave out streaming=true, or use data=stream")
    return cast("Mapping[str, Any]", loaded)


@dataclass(frozen=True)
class HuggingFaceSplit:
    """Rows of a data set."""

    items: Any
    ranges: Sequence[tuple[str, int, int]]  # a split of the data set, the first row, the one after the last

    @classmethod
    def of(cls, loaded: Mapping[str, Any], split: str, key: str) -> HuggingFaceSplit:
        """Return the rows of a split, or of an instruction such as `train[:80%]` in the words of the library.

        Raises:
            ConfigError: there is no such split.
        """
        import datasets

        lengths = {name: len(items) for name, items in loaded.items()}
        if split in lengths:
            return cls(loaded[split], [(split, 0, lengths[split])])
        try:
            read = datasets.ReadInstruction.from_spec(split).to_absolute(lengths)
        except ValueError as error:
            reason = f"; {error}" if "[" in split else suggestion(split, lengths, "Splits")
            remedy = "set data.val=null, which takes data.val_ratio of data.train"
            message = f"the data set has no split {split!r}{reason}"
            raise ConfigError(f"data.{key}", message, remedy=remedy if key == "val" else "") from error
        ranges = [(part.splitname, part.from_, part.to) for part in read]
        parts = [loaded[name].select(range(start, end)) for name, start, end in ranges]
        return cls(datasets.concatenate_datasets(parts), ranges)

    def class_names(self, column: str | None) -> tuple[str, ...] | None:
        """Return the names of the classes in a column, if the data set has some."""
        names = getattr(self.items.features.get(column), "names", None)
        return None if names is None else tuple(names)

    def overlaps(self, other: HuggingFaceSplit) -> bool:
        """Return whether both have a row."""
        pairs = itertools.product(self.ranges, other.ranges)
        return any(a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2]) for a, b in pairs)


def hugging_face_num_classes(*, _parent_: DictConfig) -> int | None:
    """Return the number of classes of data=hugging_face, if the data set has names for them."""
    from omegaconf import OmegaConf

    if any(OmegaConf.is_missing(_parent_, key) for key in ("path", "train")):
        return None
    of_loading = OmegaConf.masked_copy(_parent_, ["path", "name", "options"])
    arguments = OmegaConf.to_container(of_loading, resolve=True)
    return _num_classes(json.dumps(arguments), _parent_["train"], _parent_["target"])


@lru_cache  # for the jobs of a sweep
def _num_classes(arguments: str, train: str, target: str | None) -> int | None:
    names = HuggingFaceSplit.of(load_splits(**json.loads(arguments)), train, "train").class_names(target)
    return None if names is None else len(names)
