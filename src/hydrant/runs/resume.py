"""Decide where a run starts: at update 0, at a checkpoint, or not at all because it is finished.

Say which values trained which updates (its stretches), if it continues with another config.

Importing this module imports no torch, because a sweep's parent process checks here which jobs are finished.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.config import flat
from hydrant.config.groups import check_passed_again
from hydrant.errors import ConfigError, RecordError, near_folders, shown
from hydrant.files.redaction import redacted
from hydrant.runs.folder import CONFIG, REPLACED, RunFolder, RunStatus
from hydrant.runs.lock import OTHER_FOLDER
from hydrant.runs.record import History
from hydrant.terminal.console import relative
from hydrant.training.checkpoint.folder import check_links, find_checkpoint, newest_undamaged, run_folder

if TYPE_CHECKING:
    from hydrant.training.checkpoint.storage import SavedCheckpoint
    from hydrant.training.checkpoint.weights import Weights

_LENGTHENING = ("duration", "patience", "eval_every", "best.", "hooks")
"""Prefixes of the keys that decide after how many updates a run ends."""
_SAMPLES = ("global_batch_size", "limit_train_samples", "data.", "fold", "model.", "task.")
"""Prefixes of the keys that decide how many updates a duration in another unit has."""

_TARGET = "._target_"

Changes = Mapping[str, tuple[Any, Any]]
"""Keys of the config that differ: key -> (value in the run folder, value in this config)."""


@dataclass(frozen=True)
class Start:
    """Where a run starts: at `checkpoint`, else at update 0 with the initial `weights`, if any."""

    run: RunFolder  # that of the checkpoint, else that of this run
    checkpoint: "SavedCheckpoint | None" = None
    weights: "Weights | None" = None
    is_foreign: bool = False  # the checkpoint is in another run's folder and will be copied
    is_finished: bool = False
    changes: Changes = field(default_factory=dict[str, tuple[Any, Any]])  # resume_strict=false allows them


@dataclass(frozen=True)
class ExistingRun:
    """The state of a run folder, as a config sees it."""

    is_finished: bool  # with the same config, so nothing is left to do
    changes: Changes


def starting_point(config: Mapping[str, Any], folder: Path) -> Start:
    """Return where the run in `folder` starts, by `resume`, `init_from` and the content of the folder.

    Raises:
        ConfigError: the folder or the checkpoint belongs to another config, or there is no checkpoint to continue.
        CheckpointError: all checkpoints are damaged.
    """
    from hydrant.training.checkpoint.storage import SavedCheckpoint  # imports torch
    from hydrant.training.checkpoint.weights import find_weights

    resume, init_from, run = config["resume"], config["init_from"], RunFolder(folder)
    existing = existing_run(config, run)
    if run.newest_checkpoint is not None and resume not in ("auto", None):
        _check_resumes_itself(resume, run.newest_checkpoint, saved_config(run, "resume").get("resume"))
    if existing.is_finished:
        return Start(run, is_finished=True)
    check_links(run.checkpoints)
    if (checkpoint := newest_undamaged(run.checkpoints)) is not None:
        saved = SavedCheckpoint(checkpoint)
        changes = _changed_since(saved.manifest.num_updates, run, config, existing.changes)
        return Start(run, saved, changes=changes)
    if resume not in ("auto", None):
        checkpoint = find_checkpoint(resume, "resume")
        source = RunFolder(run_folder(checkpoint))
        changes = changed_keys(config, source)
        return Start(source, SavedCheckpoint(checkpoint), is_foreign=True, changes=changes)
    weights = None if init_from is None else find_weights(init_from, "init_from")
    return Start(run, weights=weights)


def _changed_since(num_updates: int, run: RunFolder, config: Mapping[str, Any], changes: Changes) -> Changes:
    """Return where a config differs from that of a checkpoint, given its `changes` from the config in the run folder.

    The two may differ: a start with another config replaces that in the folder before it saves a checkpoint.
    """
    earlier = [s["config"] for s in run.recorded.get("stretches") or [] if s["begin"] < num_updates][-1:]
    here = flat.values_by_key(redacted(config))
    recorded = {key: (value, here.get(key)) for saved in earlier for key, value in saved.items()}
    return {key: both for key, both in {**changes, **recorded}.items() if both[0] != both[1]}


def existing_run(config: Mapping[str, Any], run: RunFolder) -> ExistingRun:
    """Return the state of a run folder, as a config sees it.

    A run that failed or was killed before its first checkpoint may have another config: nothing of it can continue, so
    the new run replaces it. That it is not running any more is known from the lock on the folder.

    Raises:
        ConfigError: the folder holds a run of another config that could continue or is finished, `resume=null`
            forbids to continue it, or the folder holds files of these names that no run wrote.
        RecordError: the summary is damaged.
    """
    has_checkpoint = run.newest_checkpoint is not None
    if not has_checkpoint and not run.recorded:
        _check_is_of_a_run(run)
    is_finished = run.recorded.get("status") == RunStatus.FINISHED  # save_every=null: no checkpoint
    if config["resume"] is None and (has_checkpoint or is_finished):
        remedy = f"resume=auto continues it, {OTHER_FOLDER} starts another"
        raise ConfigError("resume", f"{relative(run.path)} holds a run", remedy=remedy)
    has_config = has_checkpoint or (run.path / CONFIG).exists()
    changes = _differences(config, run) if has_config else {}
    if is_finished and changes and not has_checkpoint:
        which = f"a finished run of another config ({describe_changes(changes)}) and no checkpoint to continue from"
        message = f"{relative(run.path)} holds {which}"
        raise ConfigError("resume", message, remedy=f"{OTHER_FOLDER} starts another")
    lengthening = _LENGTHENING if isinstance(config["duration"], int) else (*_LENGTHENING, *_SAMPLES)
    if is_finished and is_for_training(changes) and not any(key.startswith(lengthening) for key in changes):
        check_passed_again(changes)
        raise no_update_left(run, changes)
    if has_checkpoint:
        _check_strict(config, run, changes)
    return ExistingRun(is_finished and not changes, changes)


def _check_is_of_a_run(run: RunFolder) -> None:
    """Check that a run that has just begun wrote the files of a folder. It writes its config first.

    Raises:
        ConfigError: no run wrote them, so they must not be replaced.
    """
    present = [name for name in REPLACED if (run.path / name).exists()]
    config = saved_config(run, "resume") if CONFIG in present else {}
    if present and not {"duration", "global_batch_size"} <= config.keys():
        message = f"{relative(run.path / present[0])} is of no run, and this run would replace it"
        raise ConfigError("resume", message, remedy=f"move it, or give another {OTHER_FOLDER}")


def no_update_left(run: RunFolder, changes: Changes) -> ConfigError:
    """Return the error for a changed config that would train no update: the record would say that it trained all."""
    return ConfigError(
        "resume",
        f"{relative(run.path)} holds a run of another config, which has no update left: {describe_changes(changes)}",
        remedy=f"Give the same config, another {OTHER_FOLDER}, or a longer duration with resume_strict=false",
    )


def is_for_training(changes: Changes) -> bool:
    """Return whether changed keys affect more than the test at the end of a run."""
    return not all(map(flat.is_after_training, changes))


def changed_keys(config: Mapping[str, Any], run: RunFolder) -> Changes:
    """Return the keys in which a config differs from that of a run.

    Raises:
        ConfigError: there are such keys and `resume_strict` is true.
    """
    changes = _differences(config, run)
    _check_strict(config, run, changes)
    return changes


def _differences(config: Mapping[str, Any], run: RunFolder) -> Changes:
    changes = flat.differences(saved_config(run, "resume"), redacted(config))
    checked_elsewhere = flat.key_tables()["checked"].get(config["data"].get("_target_"), ())
    return {k: values for k, values in changes.items() if k.removeprefix("data.") not in checked_elsewhere}


def _check_strict(config: Mapping[str, Any], run: RunFolder, changes: Changes) -> None:
    if changes and config["resume_strict"]:
        check_passed_again(changes)
        raise ConfigError(
            "resume",
            f"{relative(run.path)} holds a run of another config: {describe_changes(changes)}",
            remedy=f"Give the same config or another {OTHER_FOLDER}, or continue with this config: resume_strict=false "
            "(summary.json records which updates had it)",
        )


def describe_changes(changes: Changes) -> str:
    """Return changed keys as text, with both values. Another part has other keys, so it is named alone.

    >>> sgd, adamw = {"_target_": "torch.optim.SGD"}, {"_target_": "torch.optim.AdamW", "eps": 1e-8}
    >>> describe_changes(flat.differences({"seed": 0, "optimizer": sgd}, {"seed": 1, "optimizer": adamw}))
    'optimizer (SGD there, AdamW here), seed (0 there, 1 here)'
    """
    parts = {key.removesuffix(_TARGET): both for key, both in changes.items() if key.endswith(_TARGET)}
    inside = tuple(f"{part}." for part in parts)
    texts = {key: tuple(map(shown, both)) for key, both in changes.items() if not key.startswith(inside)}
    texts |= {key: _classes(*both) for key, both in parts.items() if not key.startswith(inside)}
    return ", ".join(f"{key} ({old} there, {new} here)" for key, (old, new) in sorted(texts.items()))


def _classes(old: Any, new: Any) -> tuple[str, str]:
    """Return the names of two classes, with their modules if these alone differ; `null` for none."""
    before, after = ("null" if target is None else str(target).rpartition(".")[2] for target in (old, new))
    return (before, after) if before != after else (str(old), str(new))


def saved_config(run: RunFolder, key: str) -> dict[str, Any]:
    """Return the resolved config of a run folder.

    Raises:
        ConfigError: the folder has none that can be read; `key` is the config key that named the folder.
    """
    file = run.path / CONFIG
    try:
        saved = run.config
    except RecordError as error:
        raise ConfigError(key, error.reason, remedy=error.remedy) from error
    if not saved:
        near = "" if run.path.is_dir() else near_folders(run.path)
        raise ConfigError(key, f"{file} is missing; a run's folder holds its config", remedy=near)
    for name, value in flat.flatten(saved).items():
        if "${" in str(value):  # it would be resolved here, and may then be anything
            raise ConfigError(key, f"{file} is damaged ({name}: {shown(value)} is not resolved)")
    return flat.with_added_keys(saved)


def _check_resumes_itself(resume: str, newest: Path, first_resume: str | None) -> None:
    """Raise ConfigError if `resume` names another checkpoint than the newest of a run that has its own.

    `first_resume` is the value with which the run began: the same command may be given again.
    """
    path, newest = Path(resume).resolve(), newest.resolve()
    is_same_command = first_resume is not None and path == Path(first_resume).resolve()
    if path in (newest, run_folder(newest)) or is_same_command:
        return
    message = f"this run continues from its own {newest.name}, not from {resume}"
    remedy = f"leave resume out, or give {OTHER_FOLDER} too: a new run then continues from there"
    raise ConfigError("resume", message, remedy=remedy)


def stretches_of(config: Mapping[str, Any], history: History) -> list[dict[str, Any]]:
    """Return the stretches of a run that continues with this config; none if one config trains all its updates.

    Each has the keys that differ between the stretches, with its values. The last one has no end.

    Raises:
        ConfigError: the config of the run that continues cannot be read.
        RecordError: its summary is damaged.
    """
    if not history.num_updates:
        return []
    recorded = history.run.recorded.get("stretches") or []
    saved, here = saved_config(history.run, "resume"), redacted(config)
    before, now = flat.values_by_key(saved), flat.values_by_key(here)
    changed = (key for key in flat.differences(saved, here) if not flat.is_after_training(key))
    keys = {
        key for key in changed if not (flat.is_idle_interval(key, before) and flat.is_idle_interval(key, now))
    }
    keys |= {key for stretch in recorded for key in stretch["config"]}
    # What a stretch does not record is in the saved config, because it has not changed until now.
    parts = [
        (stretch["begin"], {key: stretch["config"].get(key, before.get(key)) for key in keys})
        for stretch in recorded or [{"begin": 0, "end": None, "config": {}}]
        if stretch["begin"] < history.num_updates  # else no update of this config is left
    ]
    return _joined([*parts, (history.num_updates, {key: now.get(key) for key in keys})])


def _joined(parts: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the stretches that begin at these updates; those that follow each other with the same values as one."""
    distinct = [part for n, part in enumerate(parts) if n == 0 or part[1] != parts[n - 1][1]]
    if len(distinct) == 1:
        return []
    first = distinct[0][1]
    keys = [key for key in sorted(first) if any(values[key] != first[key] for _, values in distinct)]
    ends = [*(begin for begin, _ in distinct[1:]), None]
    return [
        {"begin": begin, "end": end, "config": {key: values[key] for key in keys}}
        for (begin, values), end in zip(distinct, ends, strict=True)
    ]
