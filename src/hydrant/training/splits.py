"""The splits of a run's data, to train, evaluate and test on."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydrant.data import Data, Source
from hydrant.data.stratified import cut_fold, with_label_noise
from hydrant.errors import ConfigError, unknown_name
from hydrant.training.distributed.world import World

TRAIN, VAL, TEST = "train", "val", "test"


@dataclass(frozen=True)
class Split:
    """Samples that can be evaluated.

    Args:
        source: the samples. Evaluations read them without augmentation.
        batch_size: how many of them a rank evaluates at once.
        prefix: their metrics are `<prefix>/<metric>`.
    """

    source: Source
    batch_size: int
    prefix: str

    @property
    def averaged_prefix(self) -> str:
        """The prefix of their metrics with the averaged weights: `val_ema`, `val_ema/night`, `test_ema`."""
        first, *rest = self.prefix.split("/")
        return "/".join([f"{first}_ema", *rest])


def divide(config: Mapping[str, Any], data: Data) -> Data:
    """Return the data with the fold, the numbers of samples and the label noise that the config asks for.

    Raises:
        ConfigError: there are no validation samples, too few for the folds, or no labels for the noise.
    """
    limit = config["limit_train_samples"]
    if config["folds"] is not None:
        data = cut_fold(data, config["folds"], config["fold"], config["fold_seed"], limit)
    elif limit is not None and data.with_statistics_of is not None:
        data = data.with_statistics_of(range(min(limit, data.train.num_samples)))
    if not data.val.num_samples:
        remedy = "give some, or cut them from the training set: folds=5"
        raise ConfigError(data_key(config, VAL) or "data", "there are no validation samples", remedy=remedy)

    def limited(name: str, source: Source) -> Source:
        most = config[f"limit_{name if name in (TRAIN, TEST) else VAL}_samples"]
        return source if most is None else source.subset(range(min(most, source.num_samples)))

    train = limited(TRAIN, data.train)
    if ratio := config["label_noise"]:
        train = with_label_noise(train, ratio, config["label_noise_seed"], data.num_classes)
    return replace(
        data,
        train=train,
        val=limited(VAL, data.val),
        extra_val={name: limited(name, source) for name, source in data.extra_val.items()},
        test=None if data.test is None else limited(TEST, data.test),
    )


def make_splits(config: Mapping[str, Any], data: Data, world: World) -> dict[str, Split]:
    """Return the splits of divided data by name.

    Raises:
        ConfigError: a split is smaller than the number of ranks, or has a wrong name.
    """
    for name in data.extra_val:
        if name in (TRAIN, VAL, TEST) or not re.fullmatch(r"[\w.-]+", name):
            rule = f"use letters, digits, '.', '_' and '-', and not {TRAIN}, {VAL} or {TEST}"
            raise ConfigError("data.extra_val", f"{name!r} cannot name a validation set", remedy=rule)
    sources = {TRAIN: data.train, VAL: data.val, **data.extra_val}
    if data.test is not None:
        sources[TEST] = data.test
    splits: dict[str, Split] = {}
    for name, source in sources.items():
        is_main = name in (TRAIN, VAL, TEST)
        if source.num_samples < world.world_size:
            message = (
                f"{source.num_samples} samples of the split {name} are too few for {world.world_size} ranks"
            )
            raise ConfigError(f"limit_{name if is_main else VAL}_samples", message, remedy="give more")
        batch_size = min(config["eval_batch_size"], source.num_samples // world.world_size)
        splits[name] = Split(source, batch_size, name if is_main else f"{VAL}/{name}")
    return splits


def validation_splits(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the splits that are evaluated while a run trains.

    >>> validation_splits(["train", "val", "night", "test"])
    ('val', 'night')
    """
    return tuple(name for name in names if name not in (TRAIN, TEST))


def metric_prefixes(splits: Mapping[str, Split], *, is_averaged: bool) -> list[str]:
    """Return the prefixes of the metrics that evaluations give while a run trains."""
    validation = [splits[name] for name in validation_splits(splits)]
    averaged = [split.averaged_prefix for split in validation] if is_averaged else []
    return [*(split.prefix for split in validation), *averaged]


def find_split(config: Mapping[str, Any], splits: Mapping[str, Split], name: str, key: str) -> Split:
    """Return a split by name. `key` is the option or key by which the user named it.

    Raises:
        ConfigError: there is no such split.
    """
    if name in splits:
        return splits[name]
    if name != TEST:
        raise unknown_name(key, "split", name, splits)
    remedy = data_key(config, TEST) or "the argument test of hydrant.data.Data"
    raise ConfigError(
        key, f"the data have no test split, only {', '.join(splits)}", remedy=f"{remedy} gives one"
    )


def data_key(config: Mapping[str, Any], split: str) -> str | None:
    """Return the key of `data` that gives a split; None if there is no such key."""
    names: Sequence[str] = [name for name in config["data"] if name.startswith(split)]
    # The published test set of some data is their validation set, unless that is cut from the training set.
    names = names or [name for name in config["data"] if name == "val_ratio"]
    return f"data.{names[0]}" if names else None
