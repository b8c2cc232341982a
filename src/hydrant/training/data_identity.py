"""What the data of a run are, and whether they are those that the run of a checkpoint had."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from hydrant.clock import Clock, batch_size_steps
from hydrant.config.flat import flatten
from hydrant.data import PositionedSource, Source
from hydrant.data.base import changed_statistics
from hydrant.errors import CheckpointError, ConfigError, log
from hydrant.training.checkpoint.storage import SavedCheckpoint, split
from hydrant.training.trainer import Plan

_VALIDATION = ("data.val", "data.extra_val.", "data.split_seed", "folds", "fold", "limit_val_samples")
"""The beginnings of the keys that choose the samples of evaluations."""

_CHANGED = {
    "samples": ("{}", "restore the files"),
    "statistics": ("the training samples have changed: {}", "restore the file"),
    "data_files": ("the content of {} has changed", "restore the file"),
    "class_names": ("the data have other classes than the run learned: {}", "rename them back"),
}
"""What a run that continues says of each difference, and what undoes it."""


@dataclass(frozen=True)
class DataIdentity:
    """What the data of a run are. Checkpoints hold the fields by these names; one that lacks a field leaves it empty.

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
    def of(cls, plan: Plan) -> Self:
        """Return that of the data of a run."""
        data = plan.data
        sources = {"train": data.train, "val": data.val}
        sources |= {f"val/{name}": source for name, source in data.extra_val.items()}
        samples = {name: source.num_samples for name, source in sources.items()}
        keys = {key: value for key, value in flatten(plan.config).items() if key.startswith(_VALIDATION)}
        counts = {name: count for name, count in samples.items() if name != "train"}
        names = None if data.class_names is None else list(data.class_names)
        return cls(names, dict(data.statistics), samples, dict(plan.data_files), counts | keys)

    @classmethod
    def saved(cls, checkpoint: SavedCheckpoint) -> Self:
        """Return that of the run of a checkpoint.

        Raises:
            CheckpointError: it cannot be read.
        """
        missing = {"class_names": None}
        return cls(*(checkpoint.plain_state(f.name, f.type, missing.get(f.name, {})) for f in fields(cls)))

    def differences(self, now: Self) -> dict[str, str]:
        """Return what has changed from these data to those of `now`, by the field; "" stands for no words.

        What one of both does not know counts as equal. Other files that validate differ in `validated_by` too.
        """
        files = [
            key
            for key, digest in now.data_files.items()
            if key != "test" and self.data_files.get(key, digest) != digest
        ]
        is_cut_from_train = (
            now.validated_by.get("data.val") is None or now.validated_by.get("folds") is not None
        )
        changed = dict[str, str]()
        if self.samples:
            changed["samples"] = changed_statistics(self.samples, now.samples, "the number of samples")
        if self.statistics and now.statistics:
            changed["statistics"] = changed_statistics(self.statistics, now.statistics)
        changed["data_files"] = ", ".join(f"data.{key}" for key in files)
        if self.class_names and now.class_names:
            names = (self.class_names, now.class_names)
            learned, present = (
                {f"class {number}": name for number, name in enumerate(part)} for part in names
            )
            changed["class_names"] = changed_statistics(learned, present, "")
        differences = {name: text for name, text in changed.items() if text}
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


def check_stream(source: Source, *, is_continued: bool) -> None:
    """Check that the position of a stream of training samples can be saved, and restored if the run continues.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(source, PositionedSource):
        return
    if is_continued and not source.has_state:
        message = f"{source.key} has no state_dict and load_state_dict, so its position in the checkpoint is unknown"
        raise ConfigError("resume", message, remedy="add both methods, or start a new run in another folder")
    try:
        split(source.first_state, {})
    except CheckpointError as error:
        message = f"state_dict() returns what checkpoints cannot hold: {error}"
        remedy = "give numbers, strings, lists, dicts or tensors"
        raise ConfigError(source.key, message, remedy=remedy) from error


def check_ranks(source: Source, saved: SavedCheckpoint, num_ranks: int) -> None:
    """Check that a stream whose ranks read items of their own continues on as many ranks: each has its position.

    Raises:
        ConfigError: there were others.
    """
    num_saved = len(saved.plain_state("ranks"))
    if isinstance(source, PositionedSource) and source.is_divided and num_saved != num_ranks:
        message = f"{num_ranks} ranks cannot go on with a stream that {num_saved} ranks have read"
        raise ConfigError("data.divided", message, remedy=f"start {num_saved}")


def check_batch_sizes(saved: SavedCheckpoint, earlier: Any, clock: Clock) -> None:
    """Check that the completed updates keep the sizes that they had by the `earlier` `global_batch_size`.

    Epochs, samples and the position in the data are counted with the sizes of all updates.

    Raises:
        ConfigError: another size is given for one of them.
    """
    num_updates = saved.manifest.num_updates
    num_samples = saved.plain_state("samples", default={}).get("train", clock.num_samples)
    sizes, before = clock.batch_sizes, batch_size_steps(earlier, num_samples, clock.costs)
    made = [n for n in sorted({*sizes.starts, *before.starts}) if n < num_updates]
    if all(sizes.value(n) == before.value(n) for n in made):
        return
    later = [n for n in sizes.starts if n >= num_updates]
    needed = {n: before.value(n) for n in before.starts if n < num_updates}
    needed |= {n: sizes.value(n) for n in (num_updates, *later)}
    raise ConfigError(
        "global_batch_size",
        f"the {num_updates:,} updates of this run had other sizes, and epochs are counted by the sizes of all updates",
        remedy=f"keep them: 'global_batch_size={{{', '.join(f'{n}: {size}' for n, size in needed.items())}}}'",
    )
