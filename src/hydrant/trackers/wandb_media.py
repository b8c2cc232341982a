"""What a W&B run is given besides numbers: pictures, tables, histograms and files."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.trackers.base import Histogram

if TYPE_CHECKING:
    import wandb


def log_image(run: wandb.Run, num_updates: int, key: str, path: Path) -> None:
    import wandb

    run.log({"num_updates": num_updates, key: wandb.Image(str(path))})


def log_table(
    run: wandb.Run,
    folder: Path,
    num_updates: int,
    key: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """A table, which is an artifact too; `folder` is the run's."""
    import wandb

    cells = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
    with _staged_in(folder):
        run.log({"num_updates": num_updates, key: cells})


def log_histograms(run: wandb.Run, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
    import wandb

    shown: dict[str, Any] = {
        key: wandb.Histogram(np_histogram=(list(histogram.counts), histogram.edges))  # type: ignore[arg-type]
        for key, histogram in histograms.items()
    }
    run.log({"num_updates": num_updates, **shown})


def save_file(run: wandb.Run, folder: Path, path: Path) -> None:
    """A file of the run folder, under its path there."""
    copy = Path(run.dir, path.resolve().relative_to(folder))  # else the SDK warns of its link
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, copy)
    run.save(copy, base_path=run.dir, policy="now", glob=False)


STAGING = Path("wandb", "artifacts", "staging")
"""Where in the run folder the files of artifacts wait to be uploaded."""


def log_artifact(
    run: wandb.Run, folder: Path, source: Path, kind: str, aliases: Sequence[str], notes: Mapping[str, Any]
) -> None:
    """A file or a folder of the run folder as an artifact, which is a version of `<kind>-<run id>`.

    Its files are linked into `STAGING`, where neither what removes old checkpoints nor a move of the run folder takes
    them from an upload that comes later.
    """
    import wandb

    staged = folder / STAGING / source.name
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    artifact = wandb.Artifact(f"{kind}-{run.id}", type=kind, metadata=dict(notes))
    for file in files:
        _link(file, staged / file.name)
        artifact.add_file(str(staged / file.name), name=file.name, policy="immutable", skip_cache=True)
    with _staged_in(folder):
        run.log_artifact(artifact, aliases=list(aliases))


@contextlib.contextmanager
def _staged_in(folder: Path) -> Generator[None]:
    """While it lasts, the SDK keeps the files of artifacts in `STAGING` of a run folder, not in the home folder."""
    before = os.environ.get("WANDB_DATA_DIR")
    os.environ["WANDB_DATA_DIR"] = str(folder / STAGING.parts[0])
    try:
        yield
    finally:
        if before is None:
            del os.environ["WANDB_DATA_DIR"]
        else:
            os.environ["WANDB_DATA_DIR"] = before


def _link(file: Path, target: Path) -> None:
    """The same file under another name, which costs nothing: a checkpoint's are never written again; else a copy."""
    try:
        target.hardlink_to(file)
    except OSError:  # a file system without links
        shutil.copyfile(file, target)
