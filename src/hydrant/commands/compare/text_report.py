"""A comparison as text for the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from hydrant.commands.compare.comparison import LAST_UPDATE, Comparison
from hydrant.commands.compare.groups import Group, passed_over
from hydrant.commands.compare.numbers import interval, number, p_value, signed
from hydrant.commands.compare.serialize import FIGURES, figure, run_to_dict
from hydrant.commands.compare.statistics import Difference
from hydrant.commands.compare.time_to_target import UNITS
from hydrant.commands.compare.verdict_text import verdict_parts
from hydrant.runs.console import text_width
from hydrant.training.text_table import align_columns, fit_columns

T = TypeVar("T")

_TITLES = ("updates/s", "samples/s", "GiB", "MFU", "graphs", "breaks", "recompiles", "compile s")
_GROUP_TITLES = ("n", "mean", "std", "95 % interval", "median", "best", "difference", "p (Holm)")
_DISPENSABLE = ("median", "best", "std")  # what a narrow terminal leaves out first
_MAX_ERROR = 100  # characters of an error in the table
_MAX_CELLS = 6  # missing cells that are named
_MAX_ROWS = 16  # of a verdict's table
_MANY, _FEW = 100, 3
"""If there are more runs or groups, a table has only the best few, so that the report fits on a screen."""


def to_text(comparison: Comparison, page: Path | None) -> str:
    """Return the warnings, the runs, the groups, the times to the target, the verdicts and the winner as text."""
    c = comparison
    better = "higher" if c.metric.mode == "max" else "lower"
    head = f"{len(c.runs)} runs: {_states(c)}. {c.metric.name} {c.moment}; {better} is better."
    verdicts = verdict_parts(c.verdicts, _FEW if len(c.runs) > _MANY else _MAX_ROWS)
    parts = [head, _warnings(c), _runs(c), _groups(c), _target(c), _importance(c), *verdicts]
    parts.append(_conclusion(c))
    parts += [] if page is None else [f"{page} shows everything, with figures"]
    return "\n\n".join(part for part in parts if part)


def _states(c: Comparison) -> str:
    states = [run.state for run in c.runs]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _warnings(c: Comparison) -> str:
    if not c.warnings:
        return ""
    return "\n".join([_bold("Warnings:"), *(f"  ! {warning.text}" for warning in c.warnings)])


def _runs(c: Comparison) -> str:
    names = [name for name in FIGURES if any(figure(run.summary, name) is not None for run in c.runs)]
    titles = [title for title, name in zip(_TITLES, FIGURES, strict=True) if name in names]
    has_names = not c.keys or any(run.has_own_name for run in c.runs)
    identifying = [*["run"] * has_names, *c.keys, "state"]
    after = [] if c.moment == LAST_UPDATE else ["measured after"]
    lines, errors = [[*identifying, "updates", *after, c.metric.name, "best", *titles]], [""]
    runs, rest = _best_of_many(c.runs, [_rank(c, c.metric.final(run)) for run in c.runs], "runs")
    for run in runs:
        row = run_to_dict(run, c)
        lines.append(
            [*[row["name"]] * has_names, *row["labels"].values(), row["state"]]
            + [number(row["num_updates"]), *(number(row["measured_at"]) for _ in after)]
            + [number(row["final"]), number(row["best"])]
            + [number(row["figures"][name]) for name in names]
        )
        errors.append(f"  {run.error[:_MAX_ERROR]}{'...' if len(run.error) > _MAX_ERROR else ''}")
    num_columns = len(lines[0])
    figures = range(num_columns - 1, num_columns - 1 - len(titles), -1)
    width = text_width()
    texts, left_out = fit_columns(lines, range(len(identifying)), width, figures)
    table = [(text + error).rstrip() for text, error in zip(texts, errors, strict=True)]
    table = [line if len(line) <= width else f"{line[: width - 1]}…" for line in table]
    return "\n".join(table + rest + _note(left_out))


def _rank(c: Comparison, value: float | None) -> float:
    """Return a number that is smaller for a better value."""
    return math.inf if value is None else -value if c.metric.mode == "max" else value


def _best_of_many(items: Sequence[T], ranks: Sequence[float], what: str) -> tuple[Sequence[T], list[str]]:
    """Return the items, or the few best ones of many; and the line that says where the others are."""
    if len(items) <= _MANY:
        return items, []
    best = sorted(range(len(items)), key=lambda place: ranks[place])[:_FEW]
    rest = f"and {len(items) - _FEW:,} more {what}, which are not better; --csv, --json and the page (--html) have all"
    return [items[place] for place in best], [rest]


def _groups(c: Comparison) -> str:
    lines = [[*(c.by or ["group"]), *_GROUP_TITLES]]
    groups, rest = _best_of_many(c.groups, [_rank(c, g.estimate.mean) for g in c.groups], "groups")
    groups = [*groups, *(group for group in c.groups if group is c.baseline and group not in groups)]
    for group in groups:
        estimate, versus = group.estimate, group.versus
        lines.append(
            [*(group.labels.values() or ["all runs"]), f"{estimate.num}/{group.num_runs}"]
            + [number(estimate.mean), number(estimate.std), interval(estimate.low, estimate.high)]
            + [number(estimate.median), number(group.best)]
            + (["", ""] if versus is None else [signed(versus.mean), p_value(versus.p_holm)])
        )
        if group is c.baseline:
            lines[-1][-2] = "baseline"
    num_keys = max(len(c.by), 1)
    dispensable = [num_keys + _GROUP_TITLES.index(title) for title in _DISPENSABLE]
    (title, *table), left_out = fit_columns(lines, range(num_keys), text_width(), dispensable)
    table = [
        _bold(line.rstrip()) if group is c.winner else line for group, line in zip(groups, table, strict=True)
    ]
    return (
        "\n".join(text.rstrip() for text in [title, *table, *rest, *_note(left_out), *_missing(c)])
        + f"\n{_legend(c)}"
    )


def _note(left_out: Sequence[str]) -> list[str]:
    """Return the line that names the columns for which the terminal has no room."""
    return [f"A wider terminal also shows {', '.join(left_out)}."] if left_out else []


def _legend(c: Comparison) -> str:
    num = sum(group.versus is not None and group.versus.p is not None for group in c.groups)
    legend = (
        "n: runs with a result, of all runs. Interval: of the mean, Student's t. Difference: from the baseline, paired "
        "by the keys that form no group."
    )
    if num:
        legend += f"\np: paired t-test, corrected by Holm for {num} comparison{'' if num == 1 else 's'}."
    if num and not c.is_baseline_given:
        legend += (
            "\nThe baseline is the best group. These p-values are optimistic: the same results picked and tested it. "
            "Choose a baseline beforehand with --baseline."
        )
    return "\n".join([legend, *([c.caution] if c.caution else [])])


def _missing(c: Comparison) -> list[str]:
    if not c.missing:
        return []
    cells = "; ".join(" ".join(f"{k}={v}" for k, v in cell.items()) for cell in c.missing[:_MAX_CELLS])
    more = "; ..." if len(c.missing) > _MAX_CELLS else ""
    return [f"missing: {len(c.missing)} of {c.num_cells} combinations have no run: {cells}{more}"]


def _target(c: Comparison) -> str:
    if c.target is None:
        return ""
    num = sum(time.num_reached for time in c.group_times.values())
    head = f"{num} of {sum(group.num_runs for group in c.groups)} runs reach {c.target}"
    medians = [[f"median over the {c.repetitions}", "reached", *UNITS]]
    groups, rest = _best_of_many(
        c.groups, [c.group_times[g.name].times["updates"] for g in c.groups], "groups"
    )
    for group in groups:
        time = c.group_times[group.name]
        values = [number(time.times[unit] if math.isfinite(time.times[unit]) else None) for unit in UNITS]
        medians.append([group.name, f"{time.num_reached}/{group.num_runs}", *values])
    scores = [[f"AlgoPerf score for {c.target}", *c.profiles]]
    by_name = c.profiles["updates"].scores
    names, others = _best_of_many(list(by_name), [-score for score in by_name.values()], "scores")
    for name in names:
        scores.append([name, *(f"{profile.scores[name]:.4f}" for profile in c.profiles.values())])
    return "\n".join([head, *align_columns(medians, {0}), *rest, "", *align_columns(scores, {0}), *others])


def _importance(c: Comparison) -> str:
    if c.importance is None:
        return ""
    if c.importance.fit < 0:
        return "importance: not shown, because a random forest of the keys predicts the runs worse than their mean"
    keys = ", ".join(f"{key} {mean:.2f}" for key, mean, _ in c.importance.keys)
    doubt = "" if c.importance.is_reliable else ", which is too low to rely on"
    method = "loss of R2 of a random forest when the key's values are shuffled"
    return f"importance: {keys} ({method}; its R2 on unseen runs is {c.importance.fit:.2f}{doubt})"


def _conclusion(c: Comparison) -> str:
    """Return the winner, the runner-up, the lead, and the incomplete groups with a better mean."""
    if c.winner is None:
        return f"no winner: no run has finished with a finite {c.metric.name}"
    winner, mean = c.winner, number(c.winner.estimate.mean)
    lines = [_bold(f"best: {winner.name}, {c.metric.name} {mean} ({_certainty(c, winner)})")]
    if winner.without_result:
        lines.append(f"no group is complete, including this one: {winner.shortfall}")
    if c.runner_up is not None:
        mean = number(c.runner_up.estimate.mean)
        lines.append(f"second: {c.runner_up.name}, {mean} ({_certainty(c, c.runner_up)})")
    if c.lead is not None and c.lead.mean is not None:
        lines.append(f"best - second: {signed(c.lead.mean)} ({_evidence(c.lead)})")
    for group in passed_over(c.groups, winner, c.metric):
        mean = number(group.estimate.mean)
        lines.append(f"not counted as best: {group.name}, {mean}, because {group.shortfall}")
    return "\n".join(lines)


def _evidence(lead: Difference) -> str:
    if lead.p is None:
        return f"n = {lead.num_pairs}, no test"
    test = f"95 % interval {interval(lead.low, lead.high)}, p {p_value(lead.p)}, {lead.num_pairs} pairs"
    return f"{test}; this p-value is optimistic: the same results picked and tested the two"


def _certainty(c: Comparison, group: Group) -> str:
    estimate, counted = group.estimate, c.counted(group.estimate.num)
    if estimate.low is None:
        return f"{counted}, {'too few for an interval' if estimate.num == 1 else 'all equal'}"
    return f"95 % interval {interval(estimate.low, estimate.high)}, {counted}"


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text
