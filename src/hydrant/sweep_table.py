"""What came of the runs of a sweep, beside each other: sweep.csv, and the lines at its end."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydrant.job import relative, say
from hydrant.runs import RunFolder, figures
from hydrant.trackers.record import replace_file


def write_sweep_csv(folder: Path, runs: Sequence[RunFolder]) -> None:
    """`sweep.csv`: a row a job, its overrides, status and results; replaced as a whole."""
    choices = _columns(run.choices for run in runs)
    metrics = _columns(run.summary.get("metrics") or {} for run in runs)
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["run", *choices, "status", "num_updates", "best", "best_num_updates", *metrics, "error"])
    for run in runs:
        best, values = run.summary.get("best") or {}, run.summary.get("metrics") or {}
        table.writerow(
            [run.path.name, *(run.choices.get(c, "") for c in choices), run.state]
            + [run.summary.get("num_updates", ""), best.get("value", ""), best.get("num_updates", "")]
            + [values.get(m, "") for m in metrics]
            + [run.error]
        )
    replace_file(folder / "sweep.csv", text.getvalue())


def print_table(folder: Path, runs: Sequence[RunFolder], claims: Sequence[str]) -> None:
    """A line a run: the choices in which the runs differ, how it ended, its best value or its error.

    Where something is claimed of them, that too, and what it can be held against.
    """
    labels = [" ".join(f"{k}={v}" for k, v in own.items()) or run.path.name for run, own in _differing(runs)]
    width = max(map(len, labels))
    folder = Path(relative(folder))
    say(f"\n{folder}: {len(runs)} run{'s' if len(runs) > 1 else ''}, see {folder / 'sweep.csv'}")
    for run, label in zip(runs, labels, strict=True):
        best = run.summary.get("best") or {}
        value = best.get("value")
        shown = [] if value is None else [f"{best['metric']} {value:.4f} at update {best['num_updates']}"]
        shown += [told for told in (run.error, figures(run.summary) if claims else "") if told]
        say(f"  {label:<{width}}  {run.state:<11} {'; '.join(shown)}")
    for claim in claims:
        say(f"claim: {claim}")


def _differing(runs: Sequence[RunFolder]) -> list[tuple[RunFolder, dict[str, str]]]:
    """Each run with those of its choices that are not the same in all runs."""
    shared = set.intersection(*(set(run.choices.items()) for run in runs)) if runs else set()
    return [(run, dict(c for c in run.choices.items() if c not in shared)) for run in runs]


def _columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({key for row in rows for key in row})
