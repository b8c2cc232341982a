"""Whether the data of a run are those that the run of a checkpoint had."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.clock import Clock, batch_size_steps
from hydrant.config.flat import flatten
from hydrant.data import IterableSource, Source
from hydrant.data.base import Data, changed_statistics
from hydrant.errors import CheckpointError, ConfigError, log
from hydrant.safety.targets import target_nodes
from hydrant.training.checkpoint.content import SavedCheckpoint, split
from hydrant.training.checkpoint.folder import TRAINING, find_checkpoint
from hydrant.training.trainer import Plan

_VALIDATION = ("data.val", "data.extra_val.", "data.split_seed", "folds", "fold", "limit_val_samples")
"""The beginnings of the keys that choose the samples of evaluations."""


def check_stream(source: Source, *, is_continued: bool) -> None:
    """Check that the position of a stream of training samples can be saved, and restored if the run continues.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(source, IterableSource):
        return
    items = source.items
    if is_continued and not items.has_state:
        message = (
            f"{items.key} has no state_dict and load_state_dict, so its position in the checkpoint is unknown"
        )
        raise ConfigError("resume", message, remedy="add both methods, or start a new run in another folder")
    try:
        split(items.first_state, {})
    except CheckpointError as error:
        message = (
            f"state_dict() returns what checkpoints cannot hold: {error}; give numbers, strings, lists, dicts"
        )
        raise ConfigError(items.key, f"{message} or tensors") from error


def check_ranks(source: Source, saved: SavedCheckpoint, num_ranks: int) -> None:
    """Check that a stream whose ranks read items of their own continues on as many ranks: each has its position.

    Raises:
        ConfigError: there were others.
    """
    num_saved = len(saved.plain_state("ranks"))
    if isinstance(source, IterableSource) and source.is_divided and num_saved != num_ranks:
        message = f"{num_ranks} ranks cannot go on with a stream that {num_saved} ranks have read"
        raise ConfigError("data.divided", message, remedy=f"start {num_saved}")


def saved_class_names(saved: SavedCheckpoint) -> tuple[str, ...] | None:
    """Return the names of the classes that the run of a checkpoint learned; None if they are unknown.

    Raises:
        CheckpointError: they cannot be read.
    """
    names = saved.plain_state("class_names", default=None)
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CheckpointError(f"{saved.path / TRAINING} holds class names that are not texts")
    return None if names is None else tuple(names)


def check_class_names(saved: SavedCheckpoint, names: Sequence[str] | None, remedy: str) -> None:
    """Check that the classes of the data are those that the run of a checkpoint learned, if both are known.

    Raises:
        ConfigError: a class has another name, or there are more or fewer.
    """
    if difference := _changed_classes(saved_class_names(saved), names):
        message = f"the data have other classes than the run learned: {difference}"
        raise ConfigError("data", message, remedy=remedy)


def _changed_classes(learned: Sequence[str] | None, names: Sequence[str] | None) -> str:
    """Return the first class with another name, or the changed number of classes; "" if all are the same or unknown."""
    if names is None or learned is None or tuple(names) == tuple(learned):
        return ""
    if len(names) != len(learned):
        return f"there were {len(learned)} classes, and now there are {len(names)}"
    number = next(n for n, name in enumerate(names) if name != learned[n])
    return f"class {number} was {learned[number]!r} and is now {names[number]!r}"


def saved_statistics(saved: SavedCheckpoint) -> Mapping[str, Any]:
    """Return what prepared the samples of the run of a checkpoint; empty if it is unknown.

    Raises:
        CheckpointError: it cannot be read.
    """
    statistics = saved.plain_state("statistics", default={})
    if not isinstance(statistics, dict):
        raise CheckpointError(f"{saved.path / TRAINING} holds no statistics of the data")
    return statistics


def check_statistics(saved: SavedCheckpoint, statistics: Mapping[str, Any], *, is_strict: bool) -> None:
    """Check that the training samples have the statistics that prepared those of a checkpoint, if both are known.

    Raises:
        ConfigError: they differ by more than rounding; without `is_strict`, a warning says so.
    """
    learned = saved_statistics(saved)
    if not (learned and statistics and (difference := changed_statistics(learned, statistics))):
        return
    message = f"the training samples have changed: {difference}"
    _refuse_or_say(message, "file", is_strict=is_strict)


def loaded_parts(config: Mapping[str, Any]) -> dict[str, Path]:
    """Return the checkpoints that `with_weights` loads into parts such as a teacher, by the keys that name them.

    Reads all their bytes.
    """
    found: dict[str, Path] = {}
    for key, node in target_nodes({group: config[group] for group in ("model", "task")}, ""):
        if node["_target_"].startswith("hydrant.") and node["_target_"].endswith(".with_weights"):
            name = f"{key}.path".lstrip(".")
            if node.get("path") is not None:
                found[name] = find_checkpoint(node["path"], name)
    return found


def warn_of_other_data(saved: SavedCheckpoint, data: Data, key: str) -> None:
    """Warn if the weights that a key names fit, but have learned other classes or columns: nothing else tells it."""
    learned, names = saved_class_names(saved) or (), data.class_names or ()
    # A last layer of another number of classes does not fit, which the log says.
    if len(learned) == len(names) and (difference := _changed_classes(learned, names)):
        log.warning("%s: the weights have learned other classes: %s", key, difference)
    was = saved_statistics(saved)
    if was and data.statistics and (difference := changed_statistics(was, data.statistics)):
        log.warning("%s: the weights have learned samples that were prepared otherwise: %s", key, difference)


def num_samples(data: Data) -> dict[str, int]:
    """Return how many samples a run trains and validates on, by split. The test split belongs to no update."""
    splits = {
        "train": data.train,
        "val": data.val,
        **{f"val/{name}": s for name, s in data.extra_val.items()},
    }
    return {name: source.num_samples for name, source in splits.items()}


def validation_of(plan: Plan) -> dict[str, Any]:
    """Return which samples validate a run: values that are measured on others do not compare."""
    counts = {name: count for name, count in num_samples(plan.data).items() if name != "train"}
    keys = {key: value for key, value in flatten(plan.config).items() if key.startswith(_VALIDATION)}
    return counts | keys


def check_samples(saved: SavedCheckpoint, data: Data, *, is_strict: bool) -> None:
    """Check that the splits have as many samples as those of a checkpoint: the order of all depends on their number.

    Raises:
        ConfigError: they have more or fewer; without `is_strict`, a warning says so.
    """
    was = saved.plain_state("samples", default={})
    if not was or (difference := changed_statistics(was, num_samples(data), "the number of samples")) is None:
        return
    _refuse_or_say(difference, "files", is_strict=is_strict)


def validation_files(plan: Plan) -> dict[str, str]:
    """Return the digests of the files that hold the validation samples."""
    is_cut_from_train = plan.config["data"].get("val") is None or plan.config["folds"] is not None
    return {key: digest for key, digest in plan.data_files.items() if key != "train" or is_cut_from_train}


def changed_files(saved: SavedCheckpoint, now: Mapping[str, str]) -> list[str]:
    """Return the keys of `data` whose files have another content than those of the run of a checkpoint."""
    was = saved.plain_state("data_files", default={})
    return [key for key, digest in now.items() if key != "test" and was.get(key, digest) != digest]


def check_files(saved: SavedCheckpoint, now: Mapping[str, str], *, is_strict: bool) -> None:
    """Check that the files of the splits have the contents that they had in the run of a checkpoint.

    Raises:
        ConfigError: one has changed; without `is_strict`, a warning says so.
    """
    if keys := changed_files(saved, now):
        named = ", ".join(f"data.{key}" for key in keys)
        _refuse_or_say(f"the content of {named} has changed", "file", is_strict=is_strict)


def check_batch_sizes(saved: SavedCheckpoint, was: Any, clock: Clock) -> None:
    """Check that the completed updates keep the sizes that they had by `global_batch_size` as it `was`.

    Epochs, samples and the position in the data are counted with the sizes of all updates.

    Raises:
        ConfigError: another size is given for one of them.
    """
    num_updates = saved.manifest.num_updates
    num_samples = saved.plain_state("samples", default={}).get("train", clock.num_samples)
    sizes, before = clock.batch_sizes, batch_size_steps(was, num_samples, clock.costs)
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


def _refuse_or_say(difference: str, changed: str, *, is_strict: bool) -> None:
    """Raise ConfigError for changed data; without `is_strict`, only say it. `changed`: what to restore."""
    if is_strict:
        remedy = f"restore the {changed}, or continue with the new samples: resume_strict=false"
        raise ConfigError("data", difference, remedy=remedy)
    log.warning("%s; the run continues with the new samples", difference)
