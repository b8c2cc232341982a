"""Read the files of a torchvision data set, download missing ones, and name damaged ones."""

from __future__ import annotations

import fcntl
import http.client
import pickle
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hydrant.errors import ConfigError, DataError, HydrantError

# Everything that torchvision raises for missing files, damaged files and failed downloads.
_READ_ERRORS = (
    RuntimeError,
    OSError,
    ValueError,
    TypeError,
    AssertionError,
    EOFError,
    LookupError,
    pickle.UnpicklingError,
    http.client.HTTPException,
)


@dataclass(frozen=True)
class Archive:
    """A torchvision data set class and its files under `root`, each with a function that raises if it is damaged."""

    name: str
    root: Path
    dataset: Any
    checks: Mapping[Path, Callable[[Any], object]]

    @property
    def folder(self) -> Path:
        return next(iter(self.checks)).parent

    def read(self, download: bool) -> tuple[Any, Any]:
        """Return the training and the validation part. Download the files only if they cannot be read from disk."""
        try:
            return self._open()
        except _READ_ERRORS as error:
            if not download:
                raise self._explain(error, download) from error
        try:
            with _download_lock(self.root):
                self.dataset(self.root, download=True)
            return self._open()
        except _READ_ERRORS as error:
            raise self._explain(error, download) from error

    def _open(self) -> tuple[Any, Any]:
        with warnings.catch_warnings():
            # CIFAR was pickled in 2009, with a dtype format that NumPy 2.4.0 to 2.4.4 deprecates.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            return self.dataset(self.root, train=True), self.dataset(self.root, train=False)

    def _explain(self, error: Exception, download: bool) -> HydrantError:
        reason = " ".join(str(error).split())
        missing = ", ".join(path.name for path in self.checks if not path.is_file())
        not_found = f"{self.name} is not in {self.folder.absolute()} (missing: {missing})"
        remedy = f"set data.root to the folder that holds {self.folder.relative_to(self.root)}"
        if missing and download:
            message = f"{not_found} and its download failed: {reason}. Copy the files there, or {remedy}"
            return ConfigError("data.download", message)
        if missing:
            return ConfigError("data.root", f"{not_found}; {remedy}, or data.download=true")
        damaged = ", ".join(str(path) for path, check in self.checks.items() if _is_damaged(path, check))
        what = damaged or f"{self.name} in {self.folder}"
        return DataError(f"{what} cannot be read ({reason}); delete it and run again with data.download=true")


def _is_damaged(path: Path, check: Callable[[Any], object]) -> bool:
    try:
        check(path)
    except _READ_ERRORS:
        return True
    return False


@contextmanager
def _download_lock(root: Path) -> Generator[None]:
    """Let one process download at a time, because ranks and jobs share the data folder."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".download.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
