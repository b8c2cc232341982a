"""Checkpoints: folders that are whole or absent, in plain types that load with `weights_only=True`.

    checkpoints/update_00001000/model.pt      state_dict of the bare model: names without prefixes
    checkpoints/update_00001000/ema.pt        the same of the averaged model, where there is one
    checkpoints/update_00001000/training.pt   optimizers, loss scaler, counters, meter, host random state
    checkpoints/last, checkpoints/best        links to such folders

A folder is written aside, flushed to disk and renamed, so a reader sees all of it or nothing. Everything else
that varies over a run is a function of `num_updates` and needs no saving.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydrant.errors import CheckpointError, first_line, typed_line

_NAME = re.compile(r"update_(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds. Plain types and tensors only."""

    model: dict[str, Any]
    training: dict[str, Any]
    ema: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> dict[str, dict[str, Any]]:
        """The files it is written to, by name."""
        return {"model": self.model, "training": self.training} | ({"ema": self.ema} if self.ema else {})


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: `<run folder>/checkpoints`; made when the first one is saved.
        keep_last: how many of the newest stay; the best one stays besides.
    """

    def __init__(self, folder: Path, *, keep_last: int) -> None:
        self._folder = folder
        self._keep_last = keep_last

    def save(self, num_updates: int, checkpoint: Checkpoint, *, is_best: bool) -> Path:
        """Write the checkpoint of `num_updates`, point `last` (and `best`) at it, remove those not kept.

        Raises:
            CheckpointError: it cannot be written; the earlier ones are as they were.
        """
        target = self._folder / _name(num_updates)
        try:
            if not target.exists():
                self._write(target, checkpoint)
            self._point("last", target.name)
            if is_best:
                self.mark_best(num_updates)
            self._remove_old()
        except (OSError, RuntimeError) as error:  # torch's writer raises the latter when the disk is full
            raise CheckpointError(f"{target} cannot be written: {first_line(error)}") from error
        return target

    def adopt(self, checkpoint: Path, best: int | None) -> None:
        """Take over a checkpoint of another run and, from beside it, the one that was the best until then."""
        beside = [checkpoint.parent / _name(best)] if best is not None else []
        for source in (*(path for path in beside if path != checkpoint and path.is_dir()), checkpoint):
            with self._whole(self._folder / source.name) as aside:
                shutil.copytree(source, aside, dirs_exist_ok=True)
        self._point("last", checkpoint.name)

    def mark_best(self, num_updates: int) -> bool:
        """Point `best` at a checkpoint; whether it is there."""
        name = _name(num_updates)
        is_there = (self._folder / name).is_dir()
        if is_there:
            self._point("best", name)
        return is_there

    def newest(self) -> Path | None:
        """The whole checkpoint with the most updates; by name, for a kill may have come before `last` moved."""
        found = self._found()
        return found[-1] if found else None

    def _write(self, target: Path, checkpoint: Checkpoint) -> None:
        with self._whole(target) as aside:
            for part, state in checkpoint.parts().items():
                with (aside / f"{part}.pt").open("wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())

    @contextmanager
    def _whole(self, target: Path) -> Generator[Path]:
        """A folder to fill, which becomes `target` if nothing is raised and is removed if something is."""
        self._remove_unfinished()
        aside = self._folder / f".{target.name}.{os.getpid()}"
        aside.mkdir(parents=True)
        try:
            yield aside
            aside.rename(target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        _sync_folder(self._folder)

    def _found(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        found = [(int(match[1]), p) for p in self._folder.iterdir() if (match := _NAME.fullmatch(p.name))]
        return [path for _, path in sorted(found)]

    def _point(self, link: str, name: str) -> None:
        aside = self._folder / f".{link}.{os.getpid()}"
        aside.unlink(missing_ok=True)
        aside.symlink_to(name)
        aside.rename(self._folder / link)

    def _remove_old(self) -> None:
        best = self._folder / "best"
        kept = {best.resolve()} if best.exists() else set()
        for path in self._found()[: -self._keep_last]:
            if path.resolve() not in kept:
                path.rename(path.with_name(f".{path.name}"))  # at once: a kill leaves no half of it
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        for path in self._folder.glob(".update_*"):
            shutil.rmtree(path)


def _name(num_updates: int) -> str:
    return f"update_{num_updates:08d}"


def find(path: str | Path) -> Path:
    """The checkpoint folder that a path means: itself, or the newest one of a run folder.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    if (path / "model.pt").is_file():
        return path.resolve()
    newest = Checkpoints(path / "checkpoints", keep_last=1).newest()
    if newest is None:
        what = "holds no checkpoint" if path.is_dir() else "does not exist"
        raise CheckpointError(
            f"{path} {what}; give a run folder or one of its checkpoints/update_... folders"
        )
    return newest


def load(path: Path, device: torch.device) -> Checkpoint:
    """Read a checkpoint folder onto a device.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    ema = load_part(path, "ema", device) if (path / "ema.pt").exists() else {}
    return Checkpoint(load_part(path, "model", device), load_part(path, "training", device), ema)


def load_part(path: Path, part: str, device: torch.device) -> dict[str, Any]:
    """Read `model` or `training` of a checkpoint folder."""
    file = path / f"{part}.pt"
    try:
        return torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # an unpickler raises whatever damaged bytes lead it to
        told = f"{file} cannot be read ({typed_line(error)}); remove {path} to use an older one"
        raise CheckpointError(told) from error


def misfit(path: Path, model: nn.Module) -> str:
    """How the weights of a checkpoint folder differ from a model's in name or shape; "" where they fit."""
    saved = {name: tuple(v.shape) for name, v in load_part(path, "model", torch.device("meta")).items()}
    wanted = {name: tuple(v.shape) for name, v in model.state_dict().items()}
    names = [name for name in (*wanted, *(saved.keys() - wanted)) if saved.get(name) != wanted.get(name)]
    sizes = [(name, saved.get(name, "absent"), wanted.get(name, "absent")) for name in names]
    parts = [f"{name} is {there} there, {here} here" for name, there, here in sizes]
    return ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
