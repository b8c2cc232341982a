"""The checkpoints in a run folder: which exist, which are kept, and which are undamaged by their manifest's digests."""

import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydrant.clock import Interval
from hydrant.errors import CheckpointError, ConfigError, log, near_folders, quoted, typed_line
from hydrant.files.on_disk import check_regular, remove, sync
from hydrant.records import Manifest, check_type, parse_json

MANIFEST = "manifest.json"
TRAINING = "training.json"  # every checkpoint has it

_CHUNK_BYTES = 2**23
"""Bytes hashed at once. After each chunk, the saving thread waits for the GIL, which training holds. With the chunks of
`hashlib.file_digest`, 256 KiB, it waits ten times as long as it hashes, and it interrupts training as often."""


def run_folder(checkpoint: Path) -> Path:
    """Return the folder of the run that has a checkpoint."""
    return checkpoint.parent.parent


def checkpoints_of(run: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return run / "checkpoints"


def folder_name(num_updates: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"update_{num_updates:08d}"


def seal(file: Path) -> dict[str, Any]:
    """Flush a file to disk and return its entry in the manifest."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        return {"size": os.fstat(opened.fileno()).st_size, "sha256": _digest(file)}


def write_text(file: Path, text: str) -> dict[str, Any]:
    """Write a file, flush it to disk and return its entry in the manifest."""
    file.write_text(text, encoding="utf-8")
    return seal(file)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    file = folder / MANIFEST
    try:
        check_regular(file)
        manifest: Manifest = check_type(parse_json(file.read_bytes()), Manifest)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({typed_line(error)})") from error
    if TRAINING not in manifest.files:
        raise CheckpointError(f"{file} names no {TRAINING}")
    return manifest


def find_damage(folder: Path) -> str:
    """Return what is wrong with the files of a checkpoint; "" if nothing is."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return str(error)
    name = folder_name(manifest.num_updates)
    if folder.name.startswith("update_") and folder.name != name:
        return f"{folder} was renamed: its manifest is that of {name}"
    for name, saved in manifest.files.items():
        file = folder / name
        try:
            size = file.stat().st_size
            if size != saved.size:
                return f"{file} has {size} bytes instead of {saved.size}"
            if _digest(file) != saved.sha256:
                return f"{file} does not have the SHA-256 of its manifest"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
    return ""


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        chunk = memoryview(bytearray(min(_CHUNK_BYTES, os.fstat(opened.fileno()).st_size) or 1))
        while size := opened.readinto(chunk):
            digest.update(chunk[:size])
    return digest.hexdigest()


LAST, BEST = "last", "best"  # links in it
_NAME = re.compile(r"update_(\d{8,18})")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept.

    Args:
        last: number of the newest checkpoints.
        best: number of the best checkpoints: the current best and those that were the best before.
        every: checkpoints at multiples of this interval.
    """

    last: int
    best: int = 1
    every: Interval = field(default_factory=lambda: Interval(None))


class CheckpointFolder:
    """`<run folder>/checkpoints`, created when the first checkpoint is published. Only rank 0 changes it."""

    def __init__(self, path: Path, keep: Retention) -> None:
        self._path, self._keep = path, keep

    def path_of(self, num_updates: int) -> Path:
        return self._path / folder_name(num_updates)

    def temporary_path(self, num_updates: int) -> Path:
        """Return the folder in which a checkpoint is written before it is published, the same on all ranks."""
        return _temporary(self.path_of(num_updates))

    def publish(self, num_updates: int, *, is_best: bool) -> None:
        """Rename the temporary folder to the newest checkpoint, and remove those that are not kept.

        When this returns, the checkpoint and the links to it survive a power failure.
        """
        temporary, path = self.temporary_path(num_updates), self.path_of(num_updates)
        remove(path)  # if it exists, it is damaged; otherwise the run would have continued from it
        sync(temporary)  # the file names; the files are on disk already
        temporary.rename(path)
        self._link(LAST, path.name)
        if is_best:
            self.mark_best(num_updates)
        sync(self._path)
        self._remove_old()

    def discard(self, num_updates: int) -> None:
        """Remove the temporary folder."""
        shutil.rmtree(self.temporary_path(num_updates), ignore_errors=True)

    def roll_back_to(self, num_updates: int, best: int | None, *, foreign: Path | None) -> None:
        """Restore the folder to its state when the checkpoint of `num_updates` was saved, also after a kill.

        Args:
            best: the update of the best checkpoint at that time.
            foreign: the checkpoint, if it is in the folder of another run; it is copied.
        """
        if foreign is not None:
            self.copy_from(foreign, num_updates, best)
        for path in _checkpoints(self._path):
            if _num_updates(path) > num_updates:
                damaged = path.with_name(f"damaged_{path.name}")
                remove(damaged)
                path.rename(damaged)
        self._link(LAST, folder_name(num_updates))
        best = best if self._keep.best else None
        if best is None or not self.mark_best(best):
            remove(self._path / BEST)  # of another metric, or of a start that kept one
        if best is not None and best != num_updates and (message := find_damage(self.path_of(best))):
            log.warning("the best checkpoint so far is damaged: %s", message)
        sync(self._path)
        self._remove_old()

    def copy_from(self, checkpoint: Path, num_updates: int, best: int | None) -> None:
        """Copy a checkpoint of another run, and the checkpoint of update `best` in the same folder: both or none.

        They replace this folder, which holds no checkpoint.
        """
        sources = {folder_name(num_updates): checkpoint}
        if best is not None and (source := checkpoint.parent / folder_name(best)).is_dir():
            sources.setdefault(source.name, source)
        path = self._path.resolve()
        temporary = _temporary(path)
        remove(temporary)  # left by a process that was killed
        try:
            for name, source in sources.items():
                shutil.copytree(source, temporary / name)
            for copied in (*temporary.rglob("*"), temporary):
                sync(copied)
            remove(path)
            temporary.rename(path)
        except BaseException:
            remove(temporary)
            raise
        sync(path.parent)

    def mark_best(self, num_updates: int) -> bool:
        """Point `best` at a checkpoint, if it exists; return whether it does."""
        if exists := self.path_of(num_updates).is_dir():
            self._link(BEST, folder_name(num_updates))
        return exists

    def _link(self, link: str, name: str) -> None:
        temporary = _temporary(self._path / link)
        remove(temporary)
        temporary.symlink_to(name)
        temporary.rename(self._path / link)

    def _remove_old(self) -> None:
        paths = _checkpoints(self._path)
        best = self._path / Path(os.path.realpath(self._path / BEST)).name
        were_best = [path for path in paths if _was_best(path)]
        kept = {best, *paths[-self._keep.last :], *were_best[max(len(were_best) - self._keep.best, 0) :]}
        for path in paths:
            if path not in kept and not self._keep.every.due(_num_updates(path)):
                path.rename(_temporary(path))  # atomic, so that a kill leaves no incomplete checkpoint
        for path in self._path.glob(".update_*"):
            remove(path)


def check_links(folder: Path) -> None:
    """Check that `last` and `best` can be moved. In a copy that was made without links, they are folders.

    Raises:
        ConfigError: one of them is not a link.
    """
    for path in (folder / LAST, folder / BEST):
        if path.exists() and not path.is_symlink():
            raise ConfigError(
                "name",
                f"{path} must be a link to a checkpoint",
                remedy="rename it to update_..., or remove it",
            )


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the most updates. `last` may be older, after a kill before the link moved."""
    return next(reversed(_checkpoints(folder)), None)


def newest_undamaged(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint, and log the damage of newer ones. None if there is no checkpoint.

    Raises:
        CheckpointError: all checkpoints are damaged.
    """
    messages: list[str] = []
    for path in reversed(_checkpoints(folder)):
        if not (message := find_damage(path)):
            for line in messages:
                log.warning("damaged: %s; %s is the newest undamaged checkpoint", line, path.name)
            return path
        messages.append(message)
    if messages:
        raise CheckpointError(f"all checkpoints in {folder} are damaged: {'; '.join(messages)}")
    return None


def find_checkpoint(path: str | Path, key: str) -> Path:
    """Return the checkpoint at `path`, or the newest undamaged one of the run folder at `path`.

    Raises:
        ConfigError: there is none; `key` is the config key that named it.
        CheckpointError: it is damaged.
    """
    path = Path(path)
    folder = Path(os.path.realpath(path))  # unlike `resolve`, raises nothing for a link to itself
    if (folder / MANIFEST).is_file() or (folder.is_dir() and _NAME.fullmatch(folder.name)):
        if message := find_damage(folder):
            raise CheckpointError(message, remedy=f"remove {quoted(folder)} to use an older checkpoint")
        return folder
    newest = newest_undamaged(checkpoints_of(path))
    if newest is None:
        may_hold = path.is_dir() or (path.name in (LAST, BEST) and run_folder(path).is_dir())
        missing = "holds no checkpoint (save_every=null writes none)" if may_hold else "does not exist"
        problem = "is a file" if path.is_file() else missing
        meant = path.parent if path.is_file() else Path("outputs", path)
        near = f"did you mean {quoted(meant)}?" if checkpoints_of(meant).is_dir() else near_folders(path)
        remedy = near or "give a run folder or one of its checkpoints/update_... folders"
        raise ConfigError(key, f"{path} {problem}", remedy=remedy)
    return newest


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=_num_updates)


def _num_updates(path: Path) -> int:
    return int(path.name.removeprefix("update_"))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}")


def _was_best(path: Path) -> bool:
    try:
        return read_manifest(path).is_best
    except CheckpointError:
        return False
