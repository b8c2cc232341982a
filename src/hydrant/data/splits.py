"""The splits of a run's data, to train, evaluate and test on; and whether the data are still the same.

Parts of a training set: cut with the ratio of each class, folds, and wrong labels on purpose.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from hydrant import seeding
from hydrant.data.base import Data, Source, changed_statistics, labels_of
from hydrant.data.in_memory import InMemorySource
from hydrant.data.loader import LoaderSource, SampleSet
from hydrant.errors import ConfigError, log, unknown_name
from hydrant.files.plain_values import RatioBelowOne, check_value

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


def make_splits(config: Mapping[str, Any], data: Data, num_ranks: int) -> dict[str, Split]:
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
        if source.num_samples < num_ranks:
            message = f"{source.num_samples} samples of the split {name} are too few for {num_ranks} ranks"
            raise ConfigError(f"limit_{name if is_main else VAL}_samples", message, remedy="give more")
        batch_size = min(config["eval_batch_size"], source.num_samples // num_ranks)
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
    message = f"the data have no test split, only {', '.join(splits)}"
    giver = data_key(config, TEST) or "the argument test of hydrant.data.Data"
    raise ConfigError(key, message, remedy=f"{giver} gives one")


def data_key(config: Mapping[str, Any], split: str) -> str | None:
    """Return the key of `data` that gives a split; None if there is no such key."""
    names: Sequence[str] = [name for name in config["data"] if name.startswith(split)]
    # The published test set of some data is their validation set, unless that is cut from the training set.
    names = names or [name for name in config["data"] if name == "val_ratio"]
    return f"data.{names[0]}" if names else None


_VALIDATION = ("data.val", "data.extra_val.", "data.split_seed", "folds", "fold", "limit_val_samples",
               "loss_of_batch")  # fmt: skip
"""The beginnings of the keys that choose the samples of evaluations, and those of each loss of a whole batch."""

_CHANGED = {
    "samples": ("{}", "restore the files"),
    "statistics": ("the training samples have changed: {}", "restore the file"),
    "data_files": ("the content of {} has changed", "restore the file"),
    "class_names": ("the data have other classes than the run learned: {}", "rename them back"),
}
"""What a run that continues says of each difference, and what undoes it."""


@dataclass(frozen=True)
class DataIdentity:
    """What the data of a run are. Checkpoints hold the fields by these names.

    Args:
        class_names: the names of the classes; None: there are none.
        statistics: what prepares the samples and was taken from the training samples.
        samples: how many samples a run trains and validates on, by split. The test split belongs to no update.
        data_files: the digests of the files of splits, by key of `data`.
        validated_by: which samples validate: values that are measured on others do not compare.
    """

    class_names: list[str] | None
    statistics: Mapping[str, Any]
    samples: Mapping[str, int]
    data_files: Mapping[str, str]
    validated_by: Mapping[str, Any]

    @classmethod
    def of(cls, data: Data, config: Mapping[str, Any], data_files: Mapping[str, str]) -> Self:
        """Return that of the divided data of a run. `config`: flat; `data_files`: the digests of `data.files`."""
        sources = {TRAIN: data.train, VAL: data.val}
        sources |= {f"{VAL}/{name}": source for name, source in data.extra_val.items()}
        samples = {name: source.num_samples for name, source in sources.items()}
        keys = {key: value for key, value in config.items() if key.startswith(_VALIDATION)}
        counts = {name: count for name, count in samples.items() if name != TRAIN}
        names = None if data.class_names is None else list(data.class_names)
        return cls(names, dict(data.statistics), samples, data_files, counts | keys)

    def differences(self, now: Self) -> dict[str, str]:
        """Return what has changed from these data to those of `now`, by the field; "" stands for no words.

        What one of both does not know counts as equal. Other files that validate differ in `validated_by` too.
        """
        files = [
            key
            for key, digest in now.data_files.items()
            if key != "test" and self.data_files.get(key, digest) != digest
        ]
        by = now.validated_by
        is_cut_from_train = by.get("data.val") is None or by.get("folds") is not None
        learned, present = (
            {f"class {number}": name for number, name in enumerate(names or ())}
            for names in (self.class_names, now.class_names)
        )
        parts = {
            "samples": (self.samples, now.samples, "the number of samples"),
            "statistics": (self.statistics, now.statistics, "data"),
            "class_names": (learned, present, ""),
        }
        changed = {name: changed_statistics(*part) for name, part in parts.items() if part[0] and part[1]}
        changed["data_files"] = ", ".join(f"data.{key}" for key in files)
        differences = {name: changed[name] for name in _CHANGED if changed.get(name)}
        is_another = self.validated_by and self.validated_by != now.validated_by
        if is_another or any(key != "train" or is_cut_from_train for key in files):
            differences["validated_by"] = ""
        return differences

    def check_unchanged(self, now: Self, *, is_strict: bool) -> None:
        """Check that the data are those that the run of a checkpoint, which continues, had.

        Raises:
            ConfigError: they differ, by more than rounding; without `is_strict`, a warning says so.
        """
        for name, difference in self.differences(now).items():
            if name in _CHANGED:
                text, undo = _CHANGED[name]
                if is_strict:
                    remedy = f"{undo}, or continue with the new samples: resume_strict=false"
                    raise ConfigError("data", text.format(difference), remedy=remedy)
                log.warning("%s; the run continues with the new samples", text.format(difference))


def cut_part(labels: np.ndarray, ratio: float, seed: int, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of the other samples and those of a part, which has the ratio `ratio` of each class.

    The part depends only on the arguments: they are split like scikit-learn's `train_test_split(stratify=labels)`. With
    a ratio of 0 it is empty.

    Args:
        labels: the class of each sample, from 0; shape (N,).
        ratio: at least 0 and below 1.
        seed: of the choice.
        key: names the ratio in errors.

    Raises:
        ConfigError: the ratio is out of range, or a part is smaller than the number of classes.
    """
    check_value(key, RatioBelowOne, ratio)
    if ratio == 0:
        return np.arange(len(labels)), np.arange(0)
    sizes, rng = np.bincount(labels), np.random.RandomState(seed)
    num_part = int(np.ceil(ratio * len(labels)))
    if min(num_part, len(labels) - num_part) < len(sizes):
        raise ConfigError(key, f"{ratio:g} leaves a class without samples")
    rest_counts = _counts_per_class(sizes, len(labels) - num_part, rng)
    part_counts = _counts_per_class(sizes - rest_counts, num_part, rng)
    rest, part = list[np.ndarray](), list[np.ndarray]()
    for label, (num_first, num_second) in enumerate(zip(rest_counts, part_counts, strict=True)):
        shuffled = np.flatnonzero(labels == label)[rng.permutation(sizes[label])]
        rest.append(shuffled[:num_first])
        part.append(shuffled[num_first : num_first + num_second])
    return np.sort(np.concatenate(rest)), np.sort(np.concatenate(part))


def cut_val_and_test(
    labels: np.ndarray, val_ratio: float, test_ratio: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sorted indices of the samples for training, validation and test, with the ratios of each class.

    The test samples depend on `test_ratio` and `seed` only.

    Raises:
        ConfigError: a ratio is out of range, or a part is smaller than the number of classes.
    """
    rest, test = cut_part(labels, test_ratio, seed, "data.test_ratio")
    if val_ratio + test_ratio >= 1:
        message = f"{val_ratio}, with test_ratio={test_ratio}, leaves no training samples"
        raise ConfigError("data.val_ratio", message, remedy="give less")
    train, val = cut_part(labels[rest], val_ratio / (1 - test_ratio), seed, "data.val_ratio")
    return rest[train], rest[val], test


def _counts_per_class(sizes: np.ndarray, total: int, rng: np.random.RandomState) -> np.ndarray:
    """Split `total` in proportion to the sizes: round down, then add 1 to the largest remainders; ties are random."""
    exact = sizes / sizes.sum() * total
    shares = np.floor(exact)
    remainders, missing = exact - shares, int(total - shares.sum())
    for remainder in np.unique(remainders)[::-1]:
        if not missing:
            break
        (tied,) = np.nonzero(remainders == remainder)
        chosen = rng.choice(tied, size=min(len(tied), missing), replace=False)
        shares[chosen] += 1
        missing -= len(chosen)
    return shares.astype(int)


def fold_numbers(num_samples: int, folds: int, seed: int, labels: np.ndarray | None) -> np.ndarray:
    """Return the fold of each sample: int64, shape (num_samples,).

    The samples are shuffled, sorted by their labels, and dealt out to the folds in turn. So the sizes of two folds
    differ by 1 at most, and so do the numbers of their samples of each class.

    >>> fold_numbers(6, 3, seed=0, labels=np.array([0, 0, 0, 1, 1, 1])).tolist()
    [0, 2, 1, 2, 0, 1]
    """
    generator = torch.Generator().manual_seed(seeding.hash_of(seed, seeding.FOLDS))
    order = torch.randperm(num_samples, generator=generator).numpy()
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    numbers = np.empty(num_samples, dtype=np.int64)
    numbers[order] = np.arange(num_samples) % folds
    return numbers


def cut_fold(data: Data, folds: int, fold: int, seed: int, limit: int | None = None) -> Data:
    """Return data whose validation set is one fold of the training set, and whose training set is the rest.

    Folds do not depend on the seed of a run: they are a function of `seed`, the number of samples and their labels. The
    validation set of `data` is the test set, unless there is one.

    Args:
        data: all data.
        folds: how many there are.
        fold: which one validates, from 0.
        seed: of the division.
        limit: the most training samples that prepare the data, the first ones; None: all.

    Raises:
        ConfigError: there are fewer samples than folds, or the samples cannot be read by their index.
    """
    train = data.train
    if train.num_samples < folds:
        message = f"{folds} folds of {train.num_samples} training samples leave some empty"
        raise ConfigError("folds", message, remedy="give fewer")
    is_val = fold_numbers(train.num_samples, folds, seed, labels_of(train)) == fold
    training, validation = np.flatnonzero(~is_val), np.flatnonzero(is_val)
    if data.with_statistics_of is not None:
        data = data.with_statistics_of(training[:limit])
    test = data.val if data.test is None and data.val.num_samples else data.test
    return replace(data, train=data.train.subset(training), val=data.train.subset(validation), test=test)


def with_label_noise(source: Source, ratio: float, seed: int, num_classes: int | None) -> Source:
    """Return a source in which each label is, with the probability `ratio`, one of the other classes, evenly drawn.

    This is the label noise of Nakkiran et al., "Deep double descent", 2019. Which labels change, and to what, depends
    on `seed` and the place of a sample in the source, so the first samples have the same labels if there are fewer.
    Labels that are no class, such as -100, stay.

    Raises:
        ConfigError: the classes are unknown.
    """
    labels = labels_of(source)
    if labels is None or num_classes is None or not isinstance(source, InMemorySource | LoaderSource):
        message = "needs a classification whose labels are known before it reads, such as data in memory"
        raise ConfigError("label_noise", f"{message}, or a data set with `targets`", remedy="give 0")
    places, stream = torch.arange(len(labels)), seeding.hash_of(seed, seeding.LABELS)
    is_drawn = (seeding.uniform(stream, places, 0) < ratio).numpy()
    shifts = 1 + (seeding.uniform(stream, places, 1).double() * (num_classes - 1)).long().numpy()
    labels, shifts = labels.astype(np.int64), np.where(is_drawn, shifts, 0)
    if isinstance(source, InMemorySource):
        assert isinstance(source.targets, torch.Tensor)  # else it has no labels
        noisy = torch.from_numpy(_shifted(labels, shifts, num_classes))
        return replace(source, targets=noisy.to(source.targets.device))  # uint8 may not hold all classes
    return replace(source, samples=_Relabelled(source.samples, labels, shifts, num_classes))


def _shifted(labels: np.ndarray | int, shifts: np.ndarray, num_classes: int) -> np.ndarray:
    """Return labels moved on by `shifts` classes, after the last one from 0. Labels that are no class stay."""
    is_class = (np.asarray(labels) >= 0) & (np.asarray(labels) < num_classes)
    return np.where(is_class, (labels + shifts) % num_classes, labels)


@dataclass(frozen=True)
class _Relabelled:
    """The samples of a set, whose labels are shifted when they are read: `targets` may hold others than they have."""

    samples: SampleSet
    labels: np.ndarray  # int64, (N,), those in the attribute `targets` of the samples
    shifts: np.ndarray  # int64, (N,)
    num_classes: int

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int, /) -> tuple[Any, Any]:
        sample, label = self.samples[index]
        return sample, int(_shifted(int(label), self.shifts[index], self.num_classes))

    @property
    def targets(self) -> np.ndarray:
        return _shifted(self.labels, self.shifts, self.num_classes)
