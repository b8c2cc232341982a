"""Whether samples that evaluate a run have trained the weights that it begins with, its teacher, or itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydrant.config.flat import flatten
from hydrant.errors import RecordError, log
from hydrant.runs.added_keys import with_added_keys
from hydrant.runs.folder import RunFolder
from hydrant.training.checkpoint.content import SavedCheckpoint
from hydrant.training.data_checks import validation_files
from hydrant.training.plan import Plan

_OF_THE_SPLITS = ("folds", "fold", "fold_seed", "data.split_seed", "data.val_ratio", "data.test_ratio",
                  "data.train_ratio")  # fmt: skip
"""Keys that decide which samples trained a run."""

_OF_FOLDS = ("fold", "fold_seed")

_SAMPLES = ("_target_", "root", "path", "name", "options", "variant", "train", "train_dir", "operation", "modulus",
            "samples_seed")  # fmt: skip
"""The keys of `data` that say of which samples the splits are made."""


def other_splits(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys by which two configs divide the same samples otherwise.

    >>> one = {"folds": None, "fold": 0, "data": {"split_seed": 0}}
    >>> other_splits(one, one | {"fold": 1}), other_splits(one, one | {"data": {"split_seed": 1}})
    ([], ['data.split_seed'])
    """
    flat, flat_now = flatten(was), flatten(now)
    idle = _OF_FOLDS if flat.get("folds") is flat_now.get("folds") is None else ()
    return [key for key in _OF_THE_SPLITS if key not in idle and flat.get(key) != flat_now.get(key)]


def warn_of_learned_samples(plan: Plan, key: str, checkpoint: Path) -> None:
    """Warn of weights from a run that trained on samples which validate this one: their results are too good.

    Args:
        plan: what is to be trained.
        key: the config key that names the weights.
        checkpoint: where they are.
    """
    if keys := ", ".join(_learned(plan, checkpoint)):
        log.warning(
            "%s: that run had other splits (%s), so samples that evaluate this one may have trained it",
            key,
            keys,
        )


def _learned(plan: Plan, checkpoint: Path) -> Iterator[str]:
    was = dict[str, Any]()
    with suppress(RecordError):  # the weights alone are needed
        was = RunFolder(checkpoint.absolute().parent.parent).config
    if isinstance(was.get("data"), dict):  # else the folder has another program's config
        was, data = with_added_keys(was), plan.config["data"]
        if all(was["data"].get(key) == data.get(key) for key in _SAMPLES):
            yield from other_splits(was, plan.config)
    trained_by = SavedCheckpoint(checkpoint).plain_state("data_files", default={}).get("train")
    if trained_by != plan.data_files.get("train"):
        yield from (f"data.{key}" for key, digest in validation_files(plan).items() if digest == trained_by)
