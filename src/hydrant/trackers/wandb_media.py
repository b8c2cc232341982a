"""Log pictures, tables, histograms, files and artifacts to a W&B run.

`place` has the `num_updates` of what is logged, and the `time` of the last row before it.
"""

from __future__ import annotations

import contextlib
import html
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.trackers.base import Histogram

if TYPE_CHECKING:
    import wandb


def log_image(run: wandb.Run, place: Mapping[str, float], key: str, path: Path) -> None:
    import wandb

    run.log({**place, key: wandb.Image(str(path))})


def log_text(run: wandb.Run, place: Mapping[str, float], key: str, text: str) -> None:
    """Log a text as HTML that shows it as it is, because W&B has no other type for texts of any length."""
    import wandb

    run.log({**place, key: wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)})


def log_table(
    run: wandb.Run,
    folder: Path,
    place: Mapping[str, float],
    key: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Log a table, which W&B stores as an artifact. `folder` is the run folder."""
    import wandb

    table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
    with _artifacts_staged_in(folder):
        run.log({**place, key: table})


def log_histograms(run: wandb.Run, place: Mapping[str, float], histograms: Mapping[str, Histogram]) -> None:
    import wandb

    values: dict[str, Any] = {
        key: wandb.Histogram(np_histogram=(list(histogram.counts), histogram.edges))  # type: ignore[arg-type]
        for key, histogram in histograms.items()
    }
    run.log({**place, **values})


def save_file(run: wandb.Run, folder: Path, path: Path) -> None:
    """Save a file of the run folder under its path there."""
    copy = Path(run.dir, path.resolve().relative_to(folder))  # a copy, because the SDK warns of links
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, copy)
    run.save(copy, base_path=run.dir, policy="now", glob=False)


STAGING = Path("wandb", "artifacts", "staging")
"""The folder in a run folder where files of artifacts wait for their upload."""


def log_artifact(
    run: wandb.Run, folder: Path, source: Path, kind: str, aliases: Sequence[str], metadata: Mapping[str, Any]
) -> None:
    """Log a file or folder of the run folder as a version of the artifact `<kind>-<run id>`.

    The files are linked into `STAGING`, so that a later upload finds them although the checkpoint has been removed or
    the run folder has been moved.
    """
    import wandb

    staged = folder / STAGING / source.name
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    artifact = wandb.Artifact(f"{kind}-{run.id}", type=kind, metadata=dict(metadata))
    for file in files:
        _link(file, staged / file.name)
        artifact.add_file(str(staged / file.name), name=file.name, policy="immutable", skip_cache=True)
    with _artifacts_staged_in(folder):
        run.log_artifact(artifact, aliases=list(aliases))


@contextlib.contextmanager
def _artifacts_staged_in(folder: Path) -> Generator[None]:
    """Let the SDK stage files of artifacts in `STAGING` of a run folder instead of the home folder."""
    previous = os.environ.get("WANDB_DATA_DIR")
    os.environ["WANDB_DATA_DIR"] = str(folder / STAGING.parts[0])
    try:
        yield
    finally:
        if previous is None:
            del os.environ["WANDB_DATA_DIR"]
        else:
            os.environ["WANDB_DATA_DIR"] = previous


def _link(file: Path, target: Path) -> None:
    """Hard-link a file, which is safe because files of checkpoints are never rewritten. Without links, copy it."""
    try:
        target.hardlink_to(file)
    except OSError:  # a file system without links
        shutil.copyfile(file, target)
