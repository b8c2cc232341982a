"""A comparison as text."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from hydrant.compare.comparison import Comparison
from hydrant.compare.groups import Group, passed_over
from hydrant.compare.output import FIGURES, figure, run_row
from hydrant.compare.statistics import Difference
from hydrant.compare.targets import UNITS
from hydrant.tables import aligned

_TITLES = ("updates/s", "samples/s", "GiB", "MFU", "graphs", "breaks", "recompiles", "compile s")
_GROUP_TITLES = ("n", "mean", "std", "95 % interval", "median", "best", "difference", "p (Holm)")
_ERROR = 100  # characters of an error in the table
_CELLS = 6  # so many missing cells are named


def as_text(comparison: Comparison, page: Path | None) -> str:
    """What is not comparable, the runs, the groups, what was reached when, and the winner."""
    c = comparison
    better = "higher" if c.goal.mode == "max" else "lower"
    head = f"{len(c.runs)} runs: {_states(c)}. {c.goal.metric} after the last update; {better} is better."
    parts = [head, _warnings(c), _runs(c), _groups(c), _target(c), _importance(c), _conclusion(c)]
    parts += [] if page is None else [f"{page} shows all of it"]
    return "\n\n".join(part for part in parts if part)


def _states(c: Comparison) -> str:
    states = [run.state for run in c.runs]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _warnings(c: Comparison) -> str:
    if not c.warnings:
        return ""
    return "\n".join([_strong("Before reading on:"), *(f"  ! {warned.text}" for warned in c.warnings)])


def _runs(c: Comparison) -> str:
    titles = [t for t, name in zip(_TITLES, FIGURES, strict=True) if _any_has(c, name)]
    names = [name for name in FIGURES if _any_has(c, name)]
    lines, notes = [[*(c.keys or ["run"]), "state", "updates", c.goal.metric, "best", *titles]], [""]
    for run in c.runs:
        row = run_row(run, c)
        lines.append(
            [*(row["labels"].values() if c.keys else [row["name"]]), row["state"]]
            + [_number(row["num_updates"]), _number(row["final"]), _number(row["best"])]
            + [_number(row["figures"][name]) for name in names]
        )
        notes.append(f"  {run.error[:_ERROR]}{'...' if len(run.error) > _ERROR else ''}" if run.error else "")
    texts = aligned(lines, range(max(len(c.keys), 1) + 1))
    return "\n".join((text + note).rstrip() for text, note in zip(texts, notes, strict=True))


def _any_has(c: Comparison, name: str) -> bool:
    return any(figure(run.summary, name) is not None for run in c.runs)


def _groups(c: Comparison) -> str:
    lines = [[*(c.by or ["group"]), *_GROUP_TITLES]]
    for group in c.groups:
        found, versus = group.estimate, group.versus
        lines.append(
            [*(group.labels.values() or ["all runs"]), f"{found.num}/{group.num_runs}"]
            + [_number(found.mean), _number(found.std), _interval(found.low, found.high)]
            + [_number(found.median), _number(group.best)]
            + (["", ""] if versus is None else [_signed(versus.mean), _p(versus.p_holm)])
        )
        if group is c.baseline:
            lines[-1][-2] = "baseline"
    table = aligned(lines, range(max(len(c.by), 1)))
    marked = [
        _strong(line) if group is c.winner else line for group, line in zip(c.groups, table[1:], strict=True)
    ]
    num = _compared(c)
    legend = (
        "n: runs with a result, of all. Interval of the mean: Student's t. Difference from the baseline, paired by "
        f"what is not grouped;\np: paired t-test, corrected for {num} comparison{'' if num == 1 else 's'} by Holm."
    )
    if num and not c.is_baseline_given:
        legend += (
            "\nThe baseline is the best group: chosen by these results, it makes p optimistic. "
            "Name another one beforehand by --baseline."
        )
    return "\n".join(text.rstrip() for text in [table[0], *marked, *_missing(c)]) + f"\n{legend}"


def _compared(c: Comparison) -> int:
    return sum(group.versus is not None and group.versus.p is not None for group in c.groups)


def _missing(c: Comparison) -> list[str]:
    if not c.missing:
        return []
    named = "; ".join(" ".join(f"{k}={v}" for k, v in cell.items()) for cell in c.missing[:_CELLS])
    more = "; ..." if len(c.missing) > _CELLS else ""
    return [f"missing: {len(c.missing)} of {c.num_cells} cells have no run: {named}{more}"]


def _target(c: Comparison) -> str:
    if c.target is None:
        return ""
    num = sum(found.num for found in c.reached.values())
    head = f"{num} of {sum(group.num_runs for group in c.groups)} runs reach {c.target}"
    when = [["median over the seeds", "reached", *UNITS]]
    for group in c.groups:
        found = c.reached[group.name]
        times = [_number(found.times[unit] if math.isfinite(found.times[unit]) else None) for unit in UNITS]
        when.append([group.name, f"{found.num}/{group.num_runs}", *times])
    units, scores = list(c.profiles), c.profiles["updates"].scores
    table = [[f"AlgoPerf score, to {c.target}", *units]]
    table += [[name, *(f"{c.profiles[unit].scores[name]:.4f}" for unit in units)] for name in scores]
    return "\n".join([head, *aligned(when, {0}), "", *aligned(table, {0})])


def _importance(c: Comparison) -> str:
    if c.importance is None:
        return ""
    told = ", ".join(f"{key} {mean:.2f}" for key, mean, _ in c.importance.keys)
    doubt = "" if c.importance.is_reliable else ": too little to rely on"
    shown = f"importance: {told} (loss of R2 of a random forest when shuffled"
    return f"{shown}; on unseen runs its R2 is {c.importance.fit:.2f}{doubt})"


def _conclusion(c: Comparison) -> str:
    """The winner with its interval, what it leads by, and who has a better mean but lost runs."""
    if c.winner is None:
        return f"no winner: no run is finished with a finite {c.goal.metric}"
    found = c.winner.estimate
    lines = [
        _strong(f"best: {c.winner.name}, {c.goal.metric} {_number(found.mean)} ({_certainty(c.winner)})")
    ]
    if c.winner.lost:
        lines.append(f"no group is whole, not even this one: {c.winner.shortfall}")
    if c.runner_up is not None:
        second = c.runner_up
        lines.append(f"next: {second.name}, {_number(second.estimate.mean)} ({_certainty(second)})")
    if c.lead is not None and c.lead.mean is not None:
        lines.append(f"best - next: {_signed(c.lead.mean)} ({_evidence(c.lead)})")
    for group in passed_over(c.groups, c.winner, c.goal):
        mean = _number(group.estimate.mean)
        lines.append(f"not counted as best: {group.name}, {mean}, because {group.shortfall}")
    return "\n".join(lines)


def _evidence(lead: Difference) -> str:
    if lead.p is None:
        return f"n = {lead.num_pairs}, no test"
    told = f"95 % interval {_interval(lead.low, lead.high)}, p {_p(lead.p)}, {lead.num_pairs} pairs"
    return f"{told}; optimistic, since chosen by these results"


def _certainty(group: Group) -> str:
    found = group.estimate
    if found.low is None:
        return f"n = {found.num}, {'too few for an interval' if found.num == 1 else 'all equal'}"
    return f"95 % interval {_interval(found.low, found.high)}, n = {found.num}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4g} to {high:.4g}"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _p(value: float | None) -> str:
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def _strong(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text
