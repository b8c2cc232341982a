"""The checkpoints in a run's folder: which there are, which are whole, which stay."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hydrant.checkpoint.manifest import MANIFEST, check_whole, damage, read_manifest
from hydrant.clock import Cadence
from hydrant.errors import CheckpointError, ConfigError

log = logging.getLogger("hydrant")

_NAME = re.compile(r"update_(\d{8,})")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay.

    Args:
        last: how many of the newest.
        best: how many of the best: the best one, and those that were it before.
        every: those at its multiples.
    """

    last: int
    best: int = 1
    every: Cadence = field(default_factory=lambda: Cadence(None))


class Folder:
    """`<run folder>/checkpoints`; made when the first one is published. Only rank 0 changes it."""

    def __init__(self, path: Path, keep: Retention) -> None:
        self._path = path
        self._keep = keep

    def target(self, num_updates: int) -> Path:
        return self._path / _name(num_updates)

    def aside(self, num_updates: int) -> Path:
        """Where a checkpoint is written before it is published; the same for all ranks."""
        return self._path / f".{_name(num_updates)}"

    def publish(self, num_updates: int, *, is_best: bool) -> None:
        """Let what lies aside be the newest checkpoint, and remove those that are not kept."""
        target = self.target(num_updates)
        if target.exists():  # damaged, else the run had gone on from it
            shutil.rmtree(target)
        _sync(self.aside(num_updates))  # the names of its files, which are on disk themselves
        self.aside(num_updates).rename(target)
        _sync(self._path)
        self._point("last", target.name)
        if is_best:
            self.mark_best(num_updates)
        self._remove_old()

    def discard(self, num_updates: int) -> None:
        """Remove what lies aside."""
        shutil.rmtree(self.aside(num_updates), ignore_errors=True)

    def go_back_to(self, num_updates: int, best: int | None, *, foreign: Path | None) -> None:
        """Let all be as it was when the checkpoint of this update was new; `foreign` is it, of another run."""
        if foreign is not None:
            self.adopt(foreign, best)
        self.put_aside(num_updates)
        if best is None:
            return
        if not self.mark_best(best):  # a kill may have come before the link moved
            log.warning("the best checkpoint so far, of update %d, is not there", best)
        elif best != num_updates and (wrong := damage(self.target(best))):
            log.warning("the best checkpoint so far is damaged: %s", wrong)

    def adopt(self, checkpoint: Path, best: int | None) -> None:
        """Take over a checkpoint of another run and, from beside it, the one that was the best until then."""
        beside = [checkpoint.parent / _name(best)] if best is not None else []
        # It first: after a kill in between, the run goes on from the newest one that is here.
        for source in (checkpoint, *(path for path in beside if path != checkpoint and path.is_dir())):
            with self._whole(self._path / source.name) as aside:
                shutil.copytree(source, aside, dirs_exist_ok=True)
        self._point("last", checkpoint.name)

    def mark_best(self, num_updates: int) -> bool:
        """Point `best` at a checkpoint; whether it is there."""
        is_there = self.target(num_updates).is_dir()
        if is_there:
            self._point("best", _name(num_updates))
        return is_there

    def put_aside(self, num_updates: int) -> None:
        """Rename the checkpoints of later updates, which are damaged: the run goes on from this one."""
        for path in _found(self._path):
            if _number(path) > num_updates:
                damaged = path.with_name(f"damaged_{path.name}")
                shutil.rmtree(damaged, ignore_errors=True)
                path.rename(damaged)

    @contextmanager
    def _whole(self, target: Path) -> Generator[Path]:
        """A folder to fill, which becomes `target` if nothing is raised and is removed if something is."""
        self._remove_unfinished()
        aside = target.with_name(f".{target.name}")
        aside.mkdir(parents=True)
        try:
            yield aside
            for path in (*aside.iterdir(), aside):
                _sync(path)
            aside.rename(target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        _sync(self._path)

    def _point(self, link: str, name: str) -> None:
        aside = self._path / f".{link}"
        aside.unlink(missing_ok=True)
        aside.symlink_to(name)
        aside.rename(self._path / link)

    def _remove_old(self) -> None:
        found = _found(self._path)
        best = self._path / "best"
        kept = {best.resolve().name, *(path.name for path in found[-self._keep.last :])}
        kept |= {path.name for path in [p for p in found if _was_best(p)][-self._keep.best :]}
        kept |= {path.name for path in found if self._keep.every.due(_number(path))}
        for path in found:
            if path.name not in kept:
                path.rename(path.with_name(f".{path.name}"))  # at once: a kill leaves no half of it
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        for path in self._path.glob(".update_*"):
            shutil.rmtree(path)


def newest(folder: Path) -> Path | None:
    """The checkpoint with the most updates; by name, for a kill may have come before `last` moved."""
    return next(reversed(_found(folder)), None)


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint without damage; what is wrong with those after it is told.

    Raises:
        CheckpointError: there are some, but all are damaged.
    """
    wrong: list[str] = []
    for path in reversed(_found(folder)):
        told = damage(path)
        if not told:
            for line in wrong:
                log.warning("damaged: %s; %s is the newest whole checkpoint", line, path.name)
            return path
        wrong.append(told)
    if wrong:
        raise CheckpointError(f"no checkpoint in {folder} is whole: {'; '.join(wrong)}")
    return None


def find(path: str | Path, key: str) -> Path:
    """The checkpoint that a path means: itself, or the newest whole one of a run folder.

    Raises:
        ConfigError: there is none; `key` is what named it.
        CheckpointError: it is damaged.
    """
    path = Path(path)
    own = path.resolve()
    if (own / MANIFEST).is_file() or (own.is_dir() and _NAME.fullmatch(own.name)):
        check_whole(own)
        return own
    found = newest_whole(path / "checkpoints")
    if found is None:
        what = "holds no checkpoint" if path.is_dir() else "does not exist"
        told = f"{path} {what}; give a run folder or one of its checkpoints/update_... folders"
        raise ConfigError(key, told)
    return found


def _found(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=_number)


def _name(num_updates: int) -> str:
    return f"update_{num_updates:08d}"


def _number(path: Path) -> int:
    return int(path.name.removeprefix("update_"))


def _was_best(path: Path) -> bool:
    try:
        return bool(read_manifest(path).get("is_best"))
    except CheckpointError:
        return False


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
