"""What a comparison says, as one list of sections: the terminal, JSON and the page show each."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydrant.errors import first_few
from hydrant.extensions.compare.comparison import LAST_UPDATE, Comparison, Verdicts, verdict_lines
from hydrant.extensions.compare.groups import Group
from hydrant.extensions.compare.ranking import (
    UNITS,
    NoiseFloor,
    TargetVerdict,
    best_first,
    passed_over,
    seeds_text,
)
from hydrant.extensions.compare.run import Run, differing_settings, label
from hydrant.extensions.compare.sources import Question
from hydrant.extensions.compare.statistics import Bounds, corrected_for, p_value, signed
from hydrant.extensions.compare.tuning import LR, Line, Sensitivity, Tuning
from hydrant.extensions.compare.verdict import Change, Effect, Factorial
from hydrant.records import Objective
from hydrant.terminal.text import digits_of, interval, number


@dataclass(frozen=True)
class Table:
    """Rows of texts, with `-` for a missing value."""

    name: str
    caption: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_labels: int = 1  # columns in front that say what a row is about
    items: str = "rows"  # what the rows are, in words
    best: Collection[int] = ()  # the rows to mark
    ranks: Sequence[float] = ()  # of each row, smaller is better; none: the rows have an order of their own
    always: Collection[int] = ()  # rows that are shown also if others are left out
    page_only: Collection[int] = ()  # columns for which only a page has room
    dispensable: Sequence[int] | None = None  # for a narrow terminal; None: all but the first two
    notes: Sequence[str] = ()  # behind each row


@dataclass(frozen=True)
class Section:
    """Tables, and what they mean in sentences."""

    name: str
    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    has_heading: bool = True  # in the terminal
    is_detail: bool = False  # in the terminal only with --details


def verdict_sections(verdicts: Verdicts, question: Question) -> list[Section]:
    """Return a section for each verdict that there is. Those that nobody asked for are details."""
    asked = {"noise": question.difference, "sensitivity": question.tolerance, "tuning": question.tuned}
    sections = [
        _noise(verdicts.noise),
        *map(_against, filter(None, [verdicts.against])),
        *map(_sensitivity, filter(None, [verdicts.sensitivity])),
        *map(_tuning, filter(None, [verdicts.tuning])),
    ]
    return [replace(section, is_detail=asked.get(section.name, "") is None) for section in sections]


def factorial_section(factorial: Factorial, repetitions: str, mode: str) -> Section:
    """Return what each key of a sweep changes, a line each, and which keys interact."""
    titles = ["difference", "95 % interval", "p (Holm)", "verdict"]
    effects = Table(
        "effects",
        "The best value of each key beside its others, over the settings of the other keys.",
        ["key", "best", "other", *titles, "smallest and largest"],
        [[e.key, e.best, e.other, *_difference(e), _range(e, mode)] for e in factorial.effects],
        3,
        best=[place for place, e in enumerate(factorial.effects) if e.key in factorial.decided],
    )
    rows = [
        [" and ".join(i.keys), " minus ".join(i.lead_of),
         ", ".join(f"{signed(gap)} with {value}" for gap, value in zip(i.leads, i.change_to, strict=True)),
         *_difference(i)]
        for i in factorial.interactions
    ]  # fmt: skip
    changes = Table(
        "interactions", "How much the gap between two values of a key changes with a value of another key.",
        ["do they interact?", "gap", "is", *titles], rows, 3,
        best=[place for place, i in enumerate(factorial.interactions) if i.is_decided], dispensable=[4, 5, 3],
    )  # fmt: skip
    asked = f"--by {factorial.effects[0].key} asks for one key alone: choose it before you see results."
    sentences = [
        f"Each of the {repetitions} counts once, by its mean over the settings of the other keys. p and intervals are "
        f"of paired t-tests{corrected_for(factorial.num_comparisons)}. {asked}"
    ]
    if factorial.untested:
        names = "; ".join(map(" and ".join, factorial.untested))
        sentences.append(
            f"Undecided: {names}. A test needs results of two values of each key, with two {repetitions} in common and "
            "noise."
        )
    return Section("effects", "What each key changes", sentences, [effects, changes])


def _range(effect: Effect, mode: str) -> str:
    """Return the smallest and the largest lead of the best value."""
    ends = sorted(effect.leads, key=effect.leads.__getitem__, reverse=mode == "min")
    return ", ".join(f"{signed(effect.leads[end])} with {end}" for end in dict.fromkeys((ends[0], ends[-1])))


def _difference(gap: Change) -> list[str]:
    ends, p = interval(gap.low, gap.high), p_value(gap.p_holm)
    if 0.0 in (gap.low, gap.high):  # of a decided one, which is not 0
        ends = f"above {ends}" if gap.low == 0.0 else f"{number(gap.low)} to below 0"
    return [signed(gap.mean), ends, p, "decided" if gap.is_decided else "undecided"]


def _noise(noise: NoiseFloor) -> Section:
    named = [*noise.groups.items(), *([("pooled", noise.pooled)] if len(noise.groups) > 1 else [])]
    scatter = Table(
        "scatter",
        "The standard deviation of each group, with its interval by chi-square.",
        ["scatter over seeds", "n", "std", "95 % interval"],
        [[name, str(s.num), number(s.std), interval(s.low, s.high)] for name, s in named if s.degrees],
    )
    needs = Table(
        "seeds",
        f"Seeds with which a t-test (two-sided at 5 %{corrected_for(noise.num_comparisons)}) finds a true "
        "difference of this size in 80 of 100 sweeps; in brackets at the ends of the interval of the noise.",
        ["true difference", "size", "paired seeds", "seeds of each, unpaired"],
        [[n.about, number(n.difference), seeds_text(n.paired), seeds_text(n.unpaired)] for n in noise.needs],
    )
    return Section("noise", "Noise floor and seeds for a power of 80 %", noise.sentences, [scatter, needs])


def _against(verdict: TargetVerdict) -> Section:
    digits = digits_of(value for test in verdict.tests.values() for value in (test.mean, test.low, test.high))
    rows = [
        [name, str(t.num), number(t.mean, digits, "#"), interval(t.low, t.high, digits, "#"),
         signed(t.margin), p_value(t.p_holm), signed(t.statistic), p_value(t.p)]
        for name, t in verdict.tests.items()
    ]  # fmt: skip
    table = Table(
        "against",
        f"The {verdict.test} of each group. Margin: by how much the mean is better than the target.",
        ["group", "n", "mean", "95 % interval", "margin", "p (Holm)", "margin √n", "p"],
        rows,
        best=[place for place, name in enumerate(verdict.tests) if name in verdict.passed],
        page_only=[7],
    )
    return Section("against", f"Against {verdict.target}", verdict.sentences, [table])


def _sensitivity(sensitivity: Sensitivity) -> Section:
    digits = digits_of(line.basin.best if line.basin else None for line in sensitivity.lines)
    table = Table(
        "basin",
        "The best learning rate of each optimizer, and the basin around it. ≥: the basin reaches the end of the tried "
        "rates, so it may be wider.",
        ["optimizer", "lrs", "best lr", "its mean", "basin", "factor", "lrs with failed runs"],
        [_basin_row(line, digits) for line in sensitivity.lines],
        page_only=[6],
    )
    return Section("sensitivity", "Sensitivity to the learning rate", sensitivity.sentences, [table])


def _basin_row(line: Line, digits: int) -> list[str]:
    basin, cells = line.basin, ["-"] * 4
    if basin is not None:
        low, high = "≤" if basin.is_low_open else "", "≥" if basin.is_high_open else ""
        ends, is_open = f"{low}{basin.low:.2g} to {high}{basin.high:.2g}", "≥" * bool(low or high)
        mean, factor = number(basin.best, digits, "#"), f"{is_open}{number(basin.factor)}"
        cells = [f"{basin.best_lr:g}", mean, ends, factor]
    return [line.name, str(len(line.lrs)), *cells, str(sum(num > 0 for num in line.failed))]


def _tuning(tuning: Tuning) -> Section:
    counts = [1, *[n for n in (2, 4, 8, 16, 32) if n < tuning.budget][-3:], tuning.budget]
    digits = digits_of(value for method in tuning.methods for value in method.curve.expected)
    rows = [
        [m.name, str(m.num_trials), *(number(m.curve.expected[n - 1], digits, "#") for n in counts),
         interval(m.curve.low[-1], m.curve.high[-1], digits, "#") if m.curve.low and m.curve.high else "-",
         str(m.num_failed)]
        for m in tuning.methods
    ]  # fmt: skip
    titles = ["method", "trials", "best of 1", *(f"of {n}" for n in counts[1:]), "95 % interval", "failed"]
    caption = "The expected best of n trials, with the bootstrap interval of the last one over the trials."
    table = Table("tuning", caption, titles, rows, page_only=[len(titles) - 1])
    return Section("tuning", "Tuning under equal budgets", tuning.sentences, [table])


VERDICT, RUNS = "verdict", "runs"
"""The names of the sections with the verdict, and with a row for each run."""

_GROUP_TITLES = ("n", "mean", "std", "95 % interval", "median", "difference", "its interval", "p",
                 "p (Holm)", "without result")  # fmt: skip
_MAX_ERROR = 100  # characters of an error in the table
_MAX_KEYS = 4  # in which the groups differ too, that are named
_MAX_RUNS = 20  # in the terminal without --details


def sections_of(c: Comparison) -> list[Section]:
    """Return the sections of a comparison, in the order of the terminal."""
    is_one_run = len(c.runs) == 1
    sections = [Section(VERDICT, "Verdict", _verdict(c), has_heading=False)]
    if c.factorial is not None:
        sections.append(factorial_section(c.factorial, c.terms.repetitions, c.metric.mode))
    sections += [] if is_one_run else [_groups(c)]
    sections += [*_target(c), _runs(c)]
    verdicts = verdict_sections(c.verdicts, c.question)
    return [*sections, *(section for section in verdicts if not (is_one_run and section.is_detail))]


def _runs(c: Comparison) -> Section:
    names = [name for name in FIGURES if any(figure(run.summary, name) is not None for run in c.runs)]
    has_names = not c.keys or any(run.has_own_name for run in c.runs)
    identifying = [*["run"] * has_names, *c.keys, "state"]
    after = [] if c.moment == LAST_UPDATE else ["measured after"]
    of_figures = [FIGURES[name][1] for name in names]
    titles = [*identifying, "updates", *after, c.metric.name, "best value", *of_figures]
    rows, of_runs = list[list[str]](), [run_to_dict(run, c) for run in c.runs]
    notes = [f"{run.error[:_MAX_ERROR]}{'...' * (len(run.error) > _MAX_ERROR)}" for run in c.runs]
    digits = digits_of(row[name] for row in of_runs for name in ("final", "best"))
    for row in of_runs:
        counts = [row[name] for name in ("num_updates", *["measured_at"] * len(after))]
        results = [number(row[name], digits, "#") for name in ("final", "best")]
        labels = [*[row["name"]] * has_names, *row["labels"].values(), row["state"]]
        figures = [number(row["figures"][name]) for name in names]
        rows.append([*labels, *map(number, counts), *results, *figures])
    ranks = [c.metric.rank(c.metric.final(run)) for run in c.runs]
    last, about = len(titles) - 1, "Runs and the keys in which they differ."
    dispensable = range(last, last - len(names), -1)
    table = Table(
        RUNS, about, titles, rows, len(identifying), "runs", notes=notes, ranks=ranks, dispensable=dispensable
    )
    return Section(RUNS, "Runs", tables=[table], has_heading=False, is_detail=len(rows) > _MAX_RUNS)


def _groups(c: Comparison) -> Section:
    groups = best_first(c.groups, c.metric)
    digits = digits_of(x for g in groups for x in (g.estimate.mean, g.estimate.low, g.estimate.high))
    rows = [_group_row(group, digits, is_baseline=group is c.baseline) for group in groups]
    num_keys = max(len(c.by), 1)
    places = {title: num_keys + place for place, title in enumerate(_GROUP_TITLES)}
    table = Table(
        "groups",
        "The results of each group, the best mean first. p is that of one test alone: it is optimistic where the same "
        "results picked the baseline.",
        [*(c.by or ["group"]), *_GROUP_TITLES],
        rows,
        num_keys,
        "groups",
        best=[place for place, group in enumerate(groups) if group.name == c.verdict.winner],
        ranks=[c.metric.rank(group.estimate.mean) for group in groups],
        always=[place for place, group in enumerate(groups) if group is c.baseline],
        page_only=[places[title] for title in ("its interval", "p", "without result")],
        dispensable=[places[title] for title in ("median", "std")],
    )
    return Section("groups", "Groups", [*_legend(c), *_of_groups(c)], [table], has_heading=False)


def cautions(c: Comparison) -> str:
    """Return what limits the comparison, without what to do about it; "" if nothing is known."""
    return " ".join([*_untuned(c)[:1], *_edge(c)[:1], *_of_groups(c)])


def _of_groups(c: Comparison) -> list[str]:
    """Return what limits the table of groups."""
    # Settings that belong to the groups, such as the default of an optimizer.
    settings = differing_settings([group.runs for group in c.groups], c.by)
    named = [f"{key} ({', '.join(values)})" for key, values in settings.items()]
    texts = [f"The groups also differ in {first_few(named, _MAX_KEYS, ' keys')}."] * bool(named)
    return [*texts, *filter(None, [c.caution])]


def _group_row(group: Group, digits: int, *, is_baseline: bool) -> list[str]:
    estimate, versus = group.estimate, group.versus
    lacking = ", ".join(f"{num} {state}" for state, num in group.states.items() if state != "finished")
    difference = ["baseline" if is_baseline else "-", "-", "-", "-"]
    if versus is not None:
        ends = interval(versus.low, versus.high)
        difference = [signed(versus.mean), ends, p_value(versus.p), p_value(versus.p_holm)]
    return [
        *(group.labels.values() or ["all runs"]),
        f"{estimate.num}/{group.num_seeds}",
        number(estimate.mean, digits, "#"),
        number(estimate.std),
        interval(estimate.low, estimate.high, digits, "#"),
        number(estimate.median, digits, "#"),
        *difference,
        lacking or "-",
    ]


def _legend(c: Comparison) -> list[str]:
    versus = [group.versus for group in c.groups if group.versus is not None]
    num = sum(gap.p is not None for gap in versus)
    cut = cut_text(c.metric.bounds)
    legend = [f"n: {c.terms.repetitions} with a result, of all. Interval: of the mean, by Student's t{cut}."]
    if versus:
        kinds = {"paired" if gap.num_pairs else "without pairs" for gap in versus if gap.mean is not None}
        kind = kinds.pop() if len(kinds) == 1 else "paired where seeds match"
        tried, looks = c.terms.num_tried, c.terms.num_looks
        counted = [f"{tried} settings tried"] * (tried > 1) + [f"look {looks}, squared"] * (looks > 1)
        settings = f" ({', '.join([f'{num} group' + 's' * (num > 1), *counted])})" if counted else ""
        corrected = f"; p: t-test{corrected_for(num * c.terms.factor)}{settings}" if num else ""
        legend[0] += f" Difference: from the baseline, {kind}{corrected}."
    return legend


def cut_text(bounds: Bounds) -> str:
    """Return where the interval of a mean is cut, in words."""
    return "" if math.isinf(bounds[0]) else f", cut at {bounds[0]:g} and {bounds[1]:g}"


def _target(c: Comparison) -> list[Section]:
    if (goal := c.question.goal) is None:
        return []
    num = sum(time.num_reached for time in c.group_times.values())
    title = f"{num} of {sum(group.num_runs for group in c.groups)} runs reach {goal}"
    medians = [(group, c.group_times[group.name]) for group in c.groups]
    times = Table(
        "times",
        "When the runs of a group first reached the target; no time if half of them did not reach it.",
        [f"median over the {c.terms.repetitions}", "reached", *UNITS],
        [
            [
                group.name,
                f"{time.num_reached}/{group.num_runs}",
                *(number(time.times[unit] if math.isfinite(time.times[unit]) else None) for unit in UNITS),
            ]
            for group, time in medians
        ],
        items="groups",
        ranks=[time.times["updates"] for _, time in medians],
    )
    by_updates = c.profiles["updates"].scores
    scores = Table(
        "scores",
        "The area under the performance profile from 1 to 4, divided by 3.",
        [f"AlgoPerf score for {goal}", *c.profiles],
        [[name, *(f"{profile.scores[name]:.4f}" for profile in c.profiles.values())] for name in by_updates],
        items="scores",
        ranks=[-score for score in by_updates.values()],
    )
    return [Section("target", title, tables=[times, scores])]


def _verdict(c: Comparison) -> list[str]:
    """Return the verdict of the study of the runs, if there is one, then that of this comparison; how the settings were
    chosen; and a line for each incomplete group with a better mean that the verdict does not name.
    """
    verdict = [c.verdict.sentence] if c.study is None else verdict_lines(c.study, c.verdict, c.metric.name)
    unnamed = [g for g in passed_over(c.groups, c.winner, c.metric) if g.name != c.verdict.rival]
    lines = [f"Not counted: {g.name}, {number(g.estimate.mean)}, because {g.shortfall}." for g in unnamed]
    said = [" ".join(_untuned(c)), " ".join(_edge(c)), *_counted_results(c), c.choice.sentence]
    return [*verdict, *filter(None, said), *lines]


def _untuned(c: Comparison) -> list[str]:
    """Return a caution if the verdict is about optimizers whose learning rates were not chosen by these runs, and what
    to do."""
    rates = dict[str, set[str]]()
    for run in (run for group in c.groups for run in group.runs if run.summary):  # else its config is partial
        rates.setdefault(label(run, "optimizer"), set()).add(label(run, LR))
    is_chosen = c.study is not None or LR in (c.question.best_over or ())
    if is_chosen or "optimizer" not in c.by or len(rates) < 2 or {"-"} in rates.values():
        return []
    shown = ", ".join(f"{name} {' and '.join(sorted(values))}" for name, values in rates.items())
    if all(len(values) == 1 for values in rates.values()):
        doubt = f"each optimizer has one {LR} ({shown}), and other rates may reverse this"
        remedy = f"Sweep several and add --best-over {LR}, or run hydrant study with --tune {LR}."
        return [f"Not tuned: {doubt}.", remedy]
    if LR in c.by and c.factorial is None:
        return []  # each rate is a setting of its own
    text = f"Not tuned: the optimizers are not compared at the best of their {LR} ({shown})."
    return [text, f"--best-over {LR} does that."]


def _edge(c: Comparison) -> list[str]:
    rates = first_few(c.verdicts.sensitivity.at_end) if c.verdicts.sensitivity else ""
    return (
        [f"The best {LR} is the smallest or the largest tried: {rates}.", "Try further ones."]
        if rates
        else []
    )


def _counted_results(c: Comparison) -> list[str]:
    """Return a line if the runs of one seed differ in other keys, and one if results share a seed or a fold."""
    keys, lines = ", ".join(next((group.averaged_over for group in c.groups), ())), list[str]()
    if keys and (cells := max(len(group.cells) for group in c.groups)) > 1:
        each = f"Each of the {c.terms.repetitions} counts once, by its mean over {cells} settings of {keys}"
        lines.append(f"{each}: runs that share it may be near-copies, which are no evidence of their own.")
    num, num_results = max(((g.estimate.num, len(g.results)) for g in c.groups if g.results), default=(0, 0))
    text = f"The {c.terms.repetitions} are crossed, so {num_results} results of a group are {num} independent ones"
    return lines + [f"{text}: no more than the key with the fewest values has."] * (num < num_results)


FIGURES = {
    "updates_per_second": ("perf", "updates/s"), "samples_per_second": ("perf", "samples/s"),
    "peak_memory_gib": ("perf", "GiB"), "mfu": ("perf", "MFU"), "graphs": ("compile", "graphs"),
    "graph_breaks": ("compile", "breaks"), "recompiles": ("compile", "recompiles"),
    "compile_seconds": ("compile", "compile s"),
}  # fmt: skip
"""Speed, memory and compilation, each with its section of the summary and its title."""


def run_to_dict(run: Run, comparison: Comparison) -> dict[str, Any]:
    """Return the labels, state, results and figures of a run."""
    metric, summary = comparison.metric, run.summary
    return {
        "name": run.name,
        "labels": {key: label(run, key) for key in comparison.keys},
        "state": run.state,
        "error": run.error,
        "num_updates": summary.get("num_updates"),
        "total_updates": summary.get("total_updates"),
        "final": metric.final(run),
        "measured_at": metric.measured_at(run),
        "best": metric.best_of(run),
        "figures": {name: figure(summary, name) for name in FIGURES},
        "to_target": comparison.times.get(run.name),
        "stretches": summary.get("stretches") or [],
        "trial": (summary.get("trial") or {}).get("number"),
        "objectives": {o.metric: o.value(summary, _rows(run, o.metric)) for o in objectives([run])},
    }


def objectives(runs: Iterable[Run]) -> list[Objective]:
    """Return the objectives of the studies whose trials are among the runs."""
    entries = [entry for run in runs for entry in (run.summary.get("trial") or {}).get("objectives", ())]
    return list(dict.fromkeys(Objective(entry["metric"], entry["mode"]) for entry in entries))


def _rows(run: Run, metric: str) -> list[dict[str, float]]:
    """Return the rows of metrics.jsonl that hold a metric."""
    if (series := run.series.get(metric)) is None:
        return []
    pairs = zip(series.updates.tolist(), series.values.tolist(), strict=True)
    return [{"num_updates": num_updates, metric: value} for num_updates, value in pairs]


def figure(summary: Mapping[str, Any], name: str) -> float | None:
    """Return a figure of a summary; None if it is unknown or nothing was compiled."""
    section = FIGURES[name][0]
    values = (summary.get(section) or {}) if section else summary
    if section == "compile" and not values.get("graphs"):
        return None
    return values.get(name.removeprefix("compile_"))
