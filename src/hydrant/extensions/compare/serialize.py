"""A comparison as plain values, JSON and CSV."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from msgspec import to_builtins

from hydrant.extensions.compare.answers import Compare, Compared
from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.factorial import Factorial
from hydrant.extensions.compare.groups import Group
from hydrant.extensions.compare.run import Run
from hydrant.extensions.compare.sections import FIGURES, RUNS, objectives, run_to_dict, sections_of
from hydrant.extensions.compare.statistics import CONFIDENCE
from hydrant.files.atomic_write import json_safe
from hydrant.files.user_files import as_csv

_PLAIN = ("moment", "keys", "by", "caution")
_CHOICE = ("values", "judged_on", "sentence")
_PLAIN_OF_GROUP = ("labels", "num_runs", "num_seeds", "averaged_over", "cells", "left_out", "shortfall", "states",
                   "best")  # fmt: skip
"""The attributes of a comparison, of a choice and of a group that are written by their names."""


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return everything except the curves, as values that JSON can represent."""
    c = comparison
    return json_safe(
        {
            **{name: getattr(c, name) for name in _PLAIN},
            "metric": c.metric.name,
            "repetitions": c.terms.repetitions,
            "mode": c.metric.mode,
            "confidence": CONFIDENCE,
            "interval": "Student's t",
            "verdict": asdict(c.verdict),
            "study": c.study and asdict(c.study),
            "factorial": c.factorial and _factorial(c.factorial),
            "best_over": c.choice.judged_on and {name: getattr(c.choice, name) for name in _CHOICE},
            "winner": c.winner and c.winner.name,
            "baseline": c.baseline and c.baseline.name,
            "warnings": [asdict(warning) for warning in c.warnings],
            "groups": [_group(group, c) for group in c.groups],
            "num_samples": _num_samples(c.runs),
            "runs": [run_to_dict(run, c) for run in c.runs],
            "target": c.question.goal and str(c.question.goal),
            "objectives": to_builtins(objectives(c.runs)),
            "profiles": {unit: asdict(profile) for unit, profile in c.profiles.items()},
            "verdicts": asdict(c.verdicts),
            "sections": [asdict(section) for section in sections_of(c) if section.name != RUNS],
        }
    )


_MAX_BRIEF_GROUPS = 10
_MAX_BRIEF_WARNINGS = 5


def to_brief(comparison: Comparison) -> dict[str, Any]:
    """Return the verdict, the best groups and the first warnings: 4 KiB for 20 runs, and 200 bytes a pair of keys."""
    everything: dict[str, Any] = {**to_dict(comparison), "num_runs": len(comparison.runs)}
    warnings, groups = everything["warnings"], everything["groups"]
    best_first = sorted(groups, key=lambda group: comparison.metric.rank(group["mean"]))[:_MAX_BRIEF_GROUPS]
    return {field: everything[field] for field in Compare.__struct_fields__ if field in everything} | {
        "states": dict(Counter(run.state for run in comparison.runs)),
        "groups": [{field: group[field] for field in Compared.__struct_fields__} for group in best_first],
        "num_groups": len(groups),
        "warnings": [f"{warning['about']}: {warning['text']}" for warning in warnings[:_MAX_BRIEF_WARNINGS]],
        "num_warnings": len(warnings),
    }


def _num_samples(runs: Sequence[Run]) -> dict[str, int]:
    """Return the number of samples of each split that all runs have alike."""
    known = [run.summary.get("num_samples") or {} for run in runs]
    first: dict[str, int] = next(iter(known), {})
    return {split: num for split, num in first.items() if all(one.get(split) == num for one in known)}


def _factorial(factorial: Factorial) -> dict[str, Any]:
    """Return the comparisons of a factorial sweep, each in one object."""
    plain = asdict(factorial)
    del plain["verdict"]
    for name, field in (("effects", "lead"), ("interactions", "change")):
        for row in plain[name]:
            change = row.pop(field)
            row |= {key: change[key] for key in ("num_pairs", "mean", "low", "high", "p", "p_holm")}
    return plain


def _group(group: Group, comparison: Comparison) -> dict[str, Any]:
    time, noise = comparison.group_times.get(group.name), comparison.verdicts.noise.groups[group.name]
    times = {} if time is None else {"reached": time.num_reached, "to_target": time.times}
    is_one_run = not group.labels and len(comparison.runs) == 1
    return {
        "name": comparison.runs[0].name if is_one_run else group.name,
        **{name: getattr(group, name) for name in _PLAIN_OF_GROUP},
        **asdict(group.estimate),
        "std_low": noise.low,
        "std_high": noise.high,
        "versus": group.versus and asdict(group.versus),
        "runs": [run.name for run in group.runs],
        **times,
    }


def to_csv(comparison: Comparison) -> str:
    """Return one line per run. Unknown values are empty."""
    c = comparison
    units = list(next(iter(c.times.values()), {}))
    titles = ["state", "num_updates", "measured_at", c.metric.name, f"best {c.metric.name}", *FIGURES]
    table = [["run", *c.keys, *titles, *(f"{unit} to {c.question.goal}" for unit in units), "error"]]
    for run in c.runs:
        row = json_safe(run_to_dict(run, c))
        values = [row[name] for name in ("state", "num_updates", "measured_at", "final", "best")]
        times = [row["to_target"][unit] for unit in units]
        values += [*row["figures"].values(), *times, row["error"]]
        table.append([row["name"], *row["labels"].values(), *values])
    return as_csv(table, end="\n").rstrip("\n")
