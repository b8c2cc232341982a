"""Read the files of a published data set, download missing ones, and name damaged ones."""

from __future__ import annotations

import http.client
import os
import pickle
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from hydrant.errors import ConfigError, DataError, HydrantError
from hydrant.files.atomic_write import locked

# The errors that torchvision raises for missing files, damaged files and failed downloads.
_READ_ERRORS = (
    RuntimeError,
    OSError,
    ValueError,
    TypeError,
    AssertionError,
    EOFError,
    LookupError,
    pickle.UnpicklingError,
    zlib.error,
    http.client.HTTPException,
)

Samples = tuple[Tensor, Tensor]
"""Images, uint8 (N, C, H, W), and their classes, int64 (N,)."""


@dataclass(frozen=True)
class Images:
    """The content of a data set: the samples to train on and to validate on, and the names of their classes."""

    train: Samples
    val: Samples
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """The files of a data set under `root`.

    A download never writes over a file: it adds the missing ones to those that are as they were published.

    Args:
        name: of the data set.
        checks: each file, with a function that raises if it is damaged.
        open: reads the files.
        fetch: downloads files of these names into an empty folder, or below it.
        holds: what `root` has to hold, for messages.
        is_published: whether a file equals the published file.
    """

    name: str
    root: Path
    checks: Mapping[Path, Callable[[Path], object]]
    open: Callable[[], Images]
    fetch: Callable[[str], object]
    holds: str
    is_published: Callable[[Path], bool]

    @property
    def folder(self) -> Path:
        return next(iter(self.checks)).parent

    @property
    def _missing(self) -> list[Path]:
        return [path for path in self.checks if not path.is_file()]

    def read(self, download: bool) -> Images:
        """Return the content of the files. With `download`, missing ones are downloaded before."""
        try:
            if download and self._missing:
                self._download()
            return self.open()
        except _READ_ERRORS as error:
            raise self._explain(error, download) from error

    def _download(self) -> None:
        with _download_lock(self.root), TemporaryDirectory(prefix=".download-", dir=self.root) as folder:
            if not self._missing:  # another process has downloaded them
                return
            others = [path for path in self.checks if path.is_file() and not self.is_published(path)]
            if others:
                names = ", ".join(path.name for path in others)
                raise RuntimeError(f"nothing is downloaded beside {names}, because that is not as published")
            self.fetch(folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self._missing:
                if not os.path.lexists(path):
                    next(Path(folder).rglob(path.name)).rename(path)

    def _explain(self, error: Exception, download: bool) -> HydrantError:
        reason = " ".join(str(error).split())
        missing = ", ".join(path.name for path in self._missing)
        not_found = f"{self.name} is not in {self.folder.absolute()} (missing: {missing})"
        remedy = f"set data.root to the folder that holds {self.holds}"
        if missing and download:
            message = f"{not_found} and its download failed: {reason}. Copy the files there, or {remedy}"
            return ConfigError("data.download", message)
        if missing:
            return ConfigError("data.root", f"{not_found}; {remedy}, or data.download=true")
        damaged = ", ".join(str(path) for path, check in self.checks.items() if _is_damaged(path, check))
        what = damaged or f"{self.name} in {self.folder}"
        return DataError(f"{what} cannot be read ({reason}); delete it and run again with data.download=true")


def _is_damaged(path: Path, check: Callable[[Path], object]) -> bool:
    try:
        check(path)
    except _READ_ERRORS:
        return True
    return False


@contextmanager
def _download_lock(root: Path) -> Generator[None]:
    """Let one process download at a time, because ranks and jobs share the data folder."""
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / ".download.lock"):
        yield
