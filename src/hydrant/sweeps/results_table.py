"""The results of a sweep: sweep.csv, and the lines printed at the end."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.config.loss_keys import differing_definitions
from hydrant.config.schema import REPETITIONS
from hydrant.files.atomic_write import replace_file
from hydrant.files.csv_text import as_csv
from hydrant.runs.folder import SWEEP_PICTURE, SWEEP_TABLE, RunFolder, performance_text
from hydrant.sweeps.live_table import format_counts, most_urgent
from hydrant.terminal.console import relative, say
from hydrant.terminal.numbers import format_metric
from hydrant.terminal.styled import format_duration

MAX_PRINTED = 20
"""The most runs of a table that a sweep prints at its end."""


def write_sweep_csv(folder: Path, runs: Sequence[RunFolder]) -> None:
    """Write `sweep.csv` atomically: a row per run with its overrides, status and results."""
    choices = _columns(run.choices for run in runs)
    metrics = _columns(run.summary.get("metrics") or {} for run in runs)
    table = [["run", *choices, "status", "num_updates", "best", "best_num_updates", *metrics, "error"]]
    for run in runs:
        best, values = run.summary.get("best") or {}, run.summary.get("metrics") or {}
        table.append(
            [run.path.name, *(run.choices.get(c, "") for c in choices), run.state]
            + [run.summary.get("num_updates", ""), best.get("value", ""), best.get("num_updates", "")]
            + [values.get(m, "") for m in metrics]
            + [run.error]
        )
    replace_file(folder / SWEEP_TABLE, as_csv(table))


def print_table(folder: Path, runs: Sequence[RunFolder], claims: Sequence[str], mode: str) -> None:
    """Print a line per run: the choices that differ between the runs, its state and best value; below it, its error.

    Of many runs, the most urgent ones are printed, then the best ones.

    Args:
        folder: that of the sweep.
        runs: those of the sweep.
        claims: the `claim` of the configs; with them, also each run's speed and memory are printed.
        mode: whether `min` or `max` of the values is the best.
    """
    labels = labels_of(runs)
    width = max(map(len, labels))
    folder = Path(relative(folder))
    states = [run.state for run in runs]
    values = [(run.summary.get("best") or {}).get("value") for run in runs]
    places: Sequence[int] = range(len(runs))
    if len(runs) > MAX_PRINTED:
        places = most_urgent(list(zip(states, values, strict=True)), MAX_PRINTED, mode)
    say(f"\n{folder}: {len(runs)} run{'s' if len(runs) > 1 else ''}, see {folder / SWEEP_TABLE}")
    for place in places:
        run, value, best = runs[place], values[place], runs[place].summary.get("best") or {}
        details = [] if value is None else [_best_text(best, values)]
        details += [performance_text(run.summary)] if claims else []
        say(f"  {labels[place]:<{width}}  {states[place]:<11} {'; '.join(filter(None, details))}".rstrip())
        if run.error:
            say(f"    {run.error}")
    if hidden := Counter(states) - Counter(states[place] for place in places):
        say(f"  and {format_counts(hidden)}: hydrant status {shlex.quote(str(folder))} lists all")
    for claim in claims:
        say(f"claim: {claim}")


def _best_text(best: Mapping[str, Any], values: Sequence[float | None]) -> str:
    """Return the best value of a run, with digits that tell it from the `values` of the others."""
    return f"{best['metric']} {format_metric(best['value'], beside=values)} at update {best['num_updates']}"


def closing_fields(folder: Path, runs: Sequence[RunFolder], seconds: float, mode: str) -> dict[str, str]:
    """Return the last lines of a sweep by their labels: its best run, its duration, and what shows more."""
    name, fields = relative(folder), dict[str, str]()
    results = [(best, run) for run in runs if (best := run.summary.get("best"))]
    metrics = {best["metric"] for best, _ in results}
    if results and mode and not any(differing_definitions(m, [run.choices for run in runs]) for m in metrics):
        values = [best["value"] for best, _ in results]
        best, run = (max if mode == "max" else min)(results, key=lambda result: result[0]["value"])
        label = labels_of(runs)[list(runs).index(run)]
        fields["best run"] = f"{label}: {_best_text(best, values)}"
    fields |= {"duration": format_duration(seconds), "results": f"{name}/{SWEEP_TABLE}"}
    if (folder / SWEEP_PICTURE).exists():
        fields["curves"] = f"{name}/{SWEEP_PICTURE}"
    return fields | ({"compare": f"hydrant compare {shlex.quote(name)}"} if len(results) > 1 else {})


def labels_of(runs: Sequence[RunFolder]) -> list[str]:
    """Return of each run the choices in which it differs from others."""
    return [" ".join(words) or run.path.name for words, run in zip(_differing(runs, ()), runs, strict=True)]


def settings_of(runs: Sequence[RunFolder]) -> list[str]:
    """Return of each run the choices in which it differs from others, but those that repeat a run; "": none."""
    return list(map(" ".join, _differing(runs, REPETITIONS)))


def _differing(runs: Sequence[RunFolder], without: Sequence[str]) -> list[list[str]]:
    shared = set.intersection(*(set(run.choices.items()) for run in runs))
    return [
        [f"{k}={v}" for k, v in run.choices.items() if (k, v) not in shared and k not in without]
        for run in runs
    ]


def _columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({key for row in rows for key in row})
