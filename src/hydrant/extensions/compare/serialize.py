"""A comparison as plain values, JSON, CSV, and text for the terminal."""

import shutil
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET, UnsetType, to_builtins

from hydrant.extensions.compare import sections
from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.groups import Group
from hydrant.extensions.compare.ranking import best_first
from hydrant.extensions.compare.run import Run, label
from hydrant.extensions.compare.statistics import CONFIDENCE, SIGNIFICANCE, corrected_for
from hydrant.extensions.compare.verdict import Effect as Effect  # of the schema
from hydrant.extensions.compare.verdict import Factorial
from hydrant.extensions.compare.verdict import Interaction as Interaction
from hydrant.files.on_disk import as_csv, json_safe
from hydrant.records import Answer, SweepVerdict
from hydrant.terminal.console import is_terminal
from hydrant.terminal.text import align_columns, digits_of, number


class Decision(Answer):
    """What the results decide.

    Attributes:
        winner: null unless it is decided, and where another key decides which is best.
        leader: The group with the best mean, or (with `factorial`) a key's value.
        rival: What the sentence compares it with.
        lead: The leader minus the rival in units of the metric, so below 0 where less is better (the sentence turns
            the sign), with its corrected interval; `p_holm` decides.
        seeds_needed: For a power of 80 %.
    """

    status: Literal["decided", "undecided", "one_setting", "no_runs"]
    sentence: str
    winner: str | None
    leader: str | None
    rival: str | None
    lead: Mapping[str, Any] | None
    num_comparisons: int
    seeds_needed: int | None


class Compared(Answer, forbid_unknown_fields=False):
    """A group of runs.

    Attributes:
        num: Seeds (or folds) with a result: the mean over its runs counts once.
        low: Of the 95 % interval of the mean.
        shortfall: Why the group is incomplete; empty if it is complete.
    """

    name: str
    num: int
    num_runs: int
    mean: float | None
    low: float | None
    high: float | None
    shortfall: str


class Compare(Answer, forbid_unknown_fields=False):
    """The verdict, the best 10 groups and the first 5 warnings.

    With `--details`: all groups and warnings, and everything that the page shows except the curves; those fields are
    objects without a schema.

    Attributes:
        mode: `max` or `min`.
        moment: Which weights are compared.
        study: The verdict of the study whose runs are compared, computed from them. It holds although the study looked
            at its runs after each seed.
        caution: What limits the comparison; empty if nothing is known.
        factorial: What each key of a sweep over several keys changes, if `--by` is not given and its values are
            crossed.
        num_samples: How many samples each split has, such as `train` and `val`, where all runs have the same number.
        states: How many runs are in each state.
        groups: The best first.
        num_groups: With those that are left out.
        warnings: What makes the comparison unfair.
        num_warnings: With those that are left out.
    """

    metric: str
    mode: str
    moment: str
    verdict: Decision
    study: SweepVerdict | None
    factorial: Factorial | None
    caution: str
    num_samples: Mapping[str, int]
    groups: Sequence[Compared]
    warnings: Sequence[str | Mapping[str, Any]]
    num_runs: int | UnsetType = UNSET
    states: Mapping[str, int] | UnsetType = UNSET
    num_groups: int | UnsetType = UNSET
    num_warnings: int | UnsetType = UNSET


_PLAIN = ("moment", "keys", "by")

_CHOICE = ("values", "judged_on", "sentence")

_PLAIN_OF_GROUP = ("labels", "num_runs", "num_seeds", "averaged_over", "cells", "left_out", "shortfall",
                   "states")  # fmt: skip
"""The attributes of a comparison, of a choice and of a group that are written by their names."""


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return everything except the curves, as values that JSON can represent."""
    c = comparison
    return json_safe(
        {
            **{name: getattr(c, name) for name in _PLAIN},
            "caution": sections.cautions(c),
            "metric": c.metric.name,
            "repetitions": c.terms.repetitions,
            "mode": c.metric.mode,
            "confidence": CONFIDENCE,
            "interval": "Student's t",
            "verdict": asdict(c.verdict),
            "study": to_builtins(c.study),
            "factorial": to_builtins(c.factorial),
            "best_over": c.choice.judged_on and {name: getattr(c.choice, name) for name in _CHOICE},
            "winner": c.winner and c.winner.name,
            "baseline": c.baseline and c.baseline.name,
            "warnings": [asdict(warning) for warning in c.warnings],
            "groups": [_group(group, c) for group in c.groups],
            "num_samples": _num_samples(c.runs),
            "runs": [sections.run_to_dict(run, c) for run in c.runs],
            "target": c.question.goal and str(c.question.goal),
            "objectives": to_builtins(sections.objectives(c.runs)),
            "profiles": {unit: asdict(profile) for unit, profile in c.profiles.items()},
            "verdicts": asdict(c.verdicts),
            "sections": [
                asdict(section) for section in sections.sections_of(c) if section.name != sections.RUNS
            ],
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
    titles = ["state", "num_updates", "measured_at", c.metric.name, f"best {c.metric.name}"]
    times = [f"{unit} to {c.question.goal}" for unit in units]
    table = [["run", *c.keys, *titles, *sections.FIGURES, *times, "error"]]
    for run in c.runs:
        row = json_safe(sections.run_to_dict(run, c))
        values = [row[name] for name in ("state", "num_updates", "measured_at", "final", "best")]
        times = [row["to_target"][unit] for unit in units]
        values += [*row["figures"].values(), *times, row["error"]]
        table.append([row["name"], *row["labels"].values(), *values])
    return as_csv(table, end="\n").rstrip("\n")


def for_paper(comparison: Comparison) -> list[tuple[list[Sequence[str]], str]]:
    """Return tables, each with its caption: a row for each group, the best mean first; what each key changes.

    The first row of a table has its titles.
    """
    c, metric = comparison, comparison.metric
    groups, over = best_first(c.groups, metric), c.question.best_over or ()
    digits = digits_of(x for g in groups for x in (g.estimate.mean, g.estimate.low, g.estimate.high))
    better = "higher" if metric.mode == "max" else "lower"
    mean = f"{metric.name} ({better} is better)"
    means = [number(group.estimate.mean, digits) for group in groups]
    decimals = max((len(text.partition(".")[2]) for text in means), default=0)
    titles = [*(c.by or ["group"]), *over, "n", mean, f"{100 * CONFIDENCE:g} % interval", "verdict"]
    rows: list[Sequence[str]] = [titles]
    for group in groups:
        estimate, chosen = group.estimate, c.choice.values.get(group.name, {})
        values = (estimate.mean, estimate.low, estimate.high)
        shown, low, high = ("-" if value is None else f"{value:.{decimals}f}" for value in values)
        ends = "-" if low == "-" else f"{low} to {high}"
        known = (label(group.runs[0], key) if c.study else chosen.get(key, "-") for key in over)
        labels = [*(group.labels.values() or ["all runs"]), *known]
        rows.append([*labels, str(estimate.num), shown, ends, c.verdict_of(group)])
    base = c.baseline.name if c.baseline else "the best"
    what = f"Mean {metric.name} {c.moment} over n {c.terms.repetitions}"
    ends = f"the {100 * CONFIDENCE:g} % interval of the mean by Student's t{sections.cut_text(metric.bounds)}"
    tests = f"t-tests at {100 * SIGNIFICANCE:g} %, corrected for all comparisons (Holm)"
    said = f"{what} with {ends}. Verdict: against {base}, by {tests}."
    of_study = f"The study says: {c.study.sentence}" if c.study and c.study.metric == metric.name else ""
    tables = [(rows, " ".join(filter(None, (said, sections.cautions(c), of_study, c.choice.sentence))))]
    if c.factorial is not None:
        tests = f"By paired t-tests{corrected_for(c.factorial.num_comparisons)}."
        effects = sections.factorial_section(c.factorial, c.terms.repetitions, metric.mode)
        tables += [([t.titles, *t.rows], f"{t.caption} {tests}") for t in effects.tables if t.rows]
    return tables


_MAX_ROWS = 16  # of a table whose rows have an order of their own

_MANY, _FEW = 100, 3
"""If there are more runs or groups, a table has only the best few, so that the report fits on a screen."""


def to_text(comparison: Comparison, page: Path | None, *, details: bool = False) -> str:
    """Return the verdict, the warnings and the other sections as text."""
    c = comparison
    better = "higher" if c.metric.mode == "max" else "lower"
    states = [run.state for run in c.runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    head = f"{len(c.runs)} run{'s' * (len(c.runs) > 1)}: {counts}. {c.metric.name} {c.moment}; {better} is better."
    verdict, *others = sections.sections_of(c)
    warnings = "\n".join([_bold("Warnings:"), *(f"  ! {warning.text}" for warning in c.warnings)])
    parts = [_section(verdict, 0), head, *([warnings] if c.warnings else [])]
    max_rows = _FEW if len(c.runs) > _MANY else _MAX_ROWS
    parts += [_section(section, max_rows) for section in others if details or not section.is_detail]
    hidden = [section.name for section in others if section.is_detail and not details]
    more = [f"--details also shows {', '.join(hidden)}"] if hidden else []
    return "\n\n".join([*parts, *more, *([] if page is None else [f"{page} shows everything, with figures"])])


def _section(section: sections.Section, max_rows: int) -> str:
    tables = [line for table in section.tables for line in _table(table, max_rows)]
    sentences = list(section.sentences)
    if section.name == sections.VERDICT:
        sentences[0] = _bold(sentences[0])
    return "\n".join([*([f"{section.title}:"] if section.has_heading else []), *tables, *sentences])


def _table(table: sections.Table, max_rows: int) -> list[str]:
    """Return the lines of a table; nothing if it has no rows."""
    if not table.rows:
        return []
    places, width = _shown_rows(table, max_rows), text_width()
    columns = [n for n in range(len(table.titles)) if n not in table.page_only]
    cells = [[row[n] for n in columns] for row in (table.titles, *(table.rows[place] for place in places))]
    dispensable = columns[:1:-1] if table.dispensable is None else table.dispensable
    (title, *lines), left_out = fit_columns(
        cells, range(table.num_labels), width, [columns.index(n) for n in dispensable]
    )
    if table.notes:
        lines = [f"{line}  {table.notes[place]}" for line, place in zip(lines, places, strict=True)]
        lines = [line if len(line.rstrip()) <= width else f"{line[: width - 1]}…" for line in lines]
    pairs = zip(map(str.rstrip, lines), places, strict=True)
    shown = [_bold(line) if place in table.best else line for line, place in pairs]
    if num_more := len(table.rows) - len(places):
        worse = ", which are not better" if table.ranks else ""
        all_have = "--csv, --json --details and the page (--html) have all"
        shown.append(f"and {num_more:,} more {table.items}{worse}; {all_have}")
    wider = [f"A wider terminal also shows {', '.join(left_out)}."] if left_out else []
    return [title.rstrip(), *shown, *wider]


def _shown_rows(table: sections.Table, max_rows: int) -> Sequence[int]:
    """Return the rows that a terminal shows: all of few, or the best ones of many."""
    places = range(len(table.rows))
    if not table.ranks:
        return places[:max_rows]
    if len(places) <= _MANY:
        return places
    best = sorted(places, key=lambda place: table.ranks[place])[:_FEW]
    return [*best, *(place for place in table.always if place not in best)]


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def fit_columns(
    rows: Sequence[Sequence[str]], left: Collection[int], width: int, dispensable: Sequence[int]
) -> tuple[list[str], list[str]]:
    """Return the lines of `align_columns`, and the titles of the columns that were left out to fit them into `width`.

    Args:
        rows: the first one has the titles.
        dispensable: columns that may be left out, the first one first.

    >>> fit_columns([["run", "loss", "best"], ["first", "0.5", "0.4"]], {0}, width=12, dispensable=[2])
    (['run    loss', 'first   0.5'], ['best'])
    """
    kept, left_out = list(range(max(map(len, rows)))), list[str]()
    for column in [*dispensable, None]:
        shown = [[row[n] for n in kept if n < len(row)] for row in rows]
        lines = align_columns(shown, {kept.index(n) for n in left if n in kept})
        if column is None or max(map(len, lines)) <= width:
            return lines, left_out
        kept.remove(column)
        left_out.append(rows[0][column])
    raise AssertionError


def text_width() -> int:
    """Return the number of columns that a line on stdout may have: those of the terminal, if it is one."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else sys.maxsize
