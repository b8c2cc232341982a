"""A study's file in the folder of a sweep, which several processes and machines write. Imports no Optuna by itself."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

FILES = {"journal": "study.journal", "sqlite": "study.db"}
"""The kinds of storage, and their files."""

_LOCK_SECONDS = 60  # for which a writer waits until others have written


@dataclass(frozen=True)
class Trial:
    """What a job is told of the study that it is a trial of: plain types, as they travel between processes."""

    number: int
    study: str
    storage: str  # a key of FILES
    folder: str  # of the sweep
    objectives: list[dict[str, str]]  # metric and mode of each
    pruner: Mapping[str, Any] | None  # `_target_` and its arguments; None between several objectives


def open_storage(kind: str, folder: Path) -> BaseStorage:
    """The storage in a sweep's folder; made if it is not there."""
    from optuna import logging, storages
    from optuna.storages.journal import JournalFileBackend

    logging.set_verbosity(logging.WARNING)
    file = folder.resolve() / FILES[kind]  # a lock is a link to it, which another one may find stale
    if kind == "journal":
        return storages.JournalStorage(JournalFileBackend(str(file)))
    waiting = {"connect_args": {"timeout": _LOCK_SECONDS}}
    return storages.RDBStorage(f"sqlite:///{file}", engine_kwargs=waiting)


def drop_torn_line(folder: Path) -> None:
    """Take off what a kill left behind the last newline of a journal: the next line would be written behind it."""
    file = folder / FILES["journal"]
    if not file.exists() or (text := file.read_bytes()).endswith(b"\n"):
        return
    with file.open("r+b") as opened:
        opened.truncate(text.rfind(b"\n") + 1)


def make_part(node: Any, **more: Any) -> Any:
    """A sampler or a pruner from its node, `_target_` and arguments; `more` go before those of the same name."""
    from optuna.exceptions import ExperimentalWarning

    if not isinstance(node, Mapping) or "_target_" not in node:
        return node
    module, _, name = node["_target_"].rpartition(".")
    arguments = {key: make_part(value) for key, value in node.items() if key != "_target_"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return getattr(importlib.import_module(module), name)(**{**arguments, **more})
