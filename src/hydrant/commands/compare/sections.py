"""What a comparison says, as one list of sections, which the terminal, JSON and the page show."""

from __future__ import annotations

import math

from hydrant.commands.compare.comparison import LAST_UPDATE, Comparison
from hydrant.commands.compare.config_keys import differing_settings, label
from hydrant.commands.compare.groups import Group
from hydrant.commands.compare.numbers import corrected_for, p_value, signed
from hydrant.commands.compare.ranking import best_first, passed_over
from hydrant.commands.compare.run_values import FIGURES, figure, run_to_dict
from hydrant.commands.compare.section import Section, Table
from hydrant.commands.compare.time_to_target import UNITS
from hydrant.commands.compare.verdict_sections import factorial_section, verdict_sections
from hydrant.commands.compare.verdicts.sensitivity import LR
from hydrant.terminal.numbers import digits_of, interval, number

VERDICT, RUNS = "verdict", "runs"
"""The names of the sections with the verdict, and with a row for each run."""

_TITLES = ("updates/s", "samples/s", "GiB", "MFU", "graphs", "breaks", "recompiles", "compile s")
_GROUP_TITLES = ("n", "mean", "std", "95 % interval", "median", "best", "difference", "its interval", "p", "p (Holm)",
                 "without result")  # fmt: skip
_MAX_ERROR = 100  # characters of an error in the table
_MAX_CELLS = 6  # missing cells that are named
_MAX_KEYS = 4  # in which the groups differ too, that are named
_MAX_RUNS = 20  # in the terminal without --details


def sections_of(c: Comparison) -> list[Section]:
    """Return the sections of a comparison, in the order of the terminal."""
    is_one_run = len(c.runs) == 1
    sections = [Section(VERDICT, "Verdict", _verdict(c), has_heading=False)]
    sections += [] if c.factorial is None else [factorial_section(c.factorial, c.repetitions)]
    sections += [] if is_one_run else [_groups(c)]
    sections += [*_target(c), _runs(c)]
    verdicts = verdict_sections(c.verdicts, c.question)
    return [*sections, *(section for section in verdicts if not (is_one_run and section.is_detail))]


def _runs(c: Comparison) -> Section:
    names = [name for name in FIGURES if any(figure(run.summary, name) is not None for run in c.runs)]
    titles = [title for title, name in zip(_TITLES, FIGURES, strict=True) if name in names]
    has_names = not c.keys or any(run.has_own_name for run in c.runs)
    identifying = [*["run"] * has_names, *c.keys, "state"]
    after = [] if c.moment == LAST_UPDATE else ["measured after"]
    titles = [*identifying, "updates", *after, c.metric.name, "best", *titles]
    rows, notes = list[list[str]](), list[str]()
    of_runs = [run_to_dict(run, c) for run in c.runs]
    digits = digits_of(row[name] for row in of_runs for name in ("final", "best"))
    for run, row in zip(c.runs, of_runs, strict=True):
        counts = [row[name] for name in ("num_updates", *["measured_at"] * len(after))]
        results = [number(row[name], digits) for name in ("final", "best")]
        labels = [*[row["name"]] * has_names, *row["labels"].values(), row["state"]]
        rows.append(
            [*labels, *map(number, counts), *results, *(number(row["figures"][name]) for name in names)]
        )
        notes.append(f"{run.error[:_MAX_ERROR]}{'...' if len(run.error) > _MAX_ERROR else ''}")
    table = Table(
        RUNS, "Runs and the keys in which they differ.", titles, rows, len(identifying), "runs", notes=notes,
        ranks=[c.metric.rank(c.metric.final(run)) for run in c.runs],
        dispensable=range(len(titles) - 1, len(titles) - 1 - len(names), -1),
    )  # fmt: skip
    return Section(RUNS, "Runs", tables=[table], has_heading=False, is_detail=len(rows) > _MAX_RUNS)


def _groups(c: Comparison) -> Section:
    groups = best_first(c.groups, c.metric)
    digits = digits_of(
        value
        for group in groups
        for value in (group.estimate.mean, group.estimate.low, group.estimate.high, group.best)
    )
    rows = [_group_row(group, digits, is_baseline=group is c.baseline) for group in groups]
    num_keys = max(len(c.by), 1)
    places = {title: num_keys + place for place, title in enumerate(_GROUP_TITLES)}
    table = Table(
        "groups", "The results of each group, the best mean first.", [*(c.by or ["group"]), *_GROUP_TITLES], rows,
        num_keys, "groups",
        best=[place for place, group in enumerate(groups) if group.name == c.verdict.winner],
        ranks=[c.metric.rank(group.estimate.mean) for group in groups],
        always=[place for place, group in enumerate(groups) if group is c.baseline],
        page_only=[places[title] for title in ("its interval", "p", "without result")],
        dispensable=[places[title] for title in ("median", "best", "std")],
    )  # fmt: skip
    sentences = [*_also_differing(c), *_missing(c), *_legend(c)]
    return Section("groups", "Groups", sentences, [table], has_heading=False)


def _group_row(group: Group, digits: int, *, is_baseline: bool) -> list[str]:
    estimate, versus = group.estimate, group.versus
    lacking = ", ".join(f"{num} {state}" for state, num in group.states.items() if state != "finished")
    difference = ["baseline" if is_baseline else "-", "-", "-", "-"]
    if versus is not None:
        ps = [p_value(versus.p), p_value(versus.p_holm)]
        difference = [signed(versus.mean), interval(versus.low, versus.high), *ps]
    return [
        *(group.labels.values() or ["all runs"]), f"{estimate.num}/{group.num_seeds}",
        number(estimate.mean, digits), number(estimate.std), interval(estimate.low, estimate.high, digits),
        number(estimate.median, digits), number(group.best, digits), *difference, lacking or "-",
    ]  # fmt: skip


def _also_differing(c: Comparison) -> list[str]:
    """Return a line about the settings that belong to the groups, such as the default of an optimizer."""
    found = differing_settings([group.runs for group in c.groups], c.by)
    named = [f"{key} ({', '.join(values)})" for key, values in [*found.items()][:_MAX_KEYS]]
    more = [f"{len(found) - _MAX_KEYS} more keys"] if len(found) > _MAX_KEYS else []
    return [f"The groups also differ in {', '.join([*named, *more])}."] if named else []


def _legend(c: Comparison) -> list[str]:
    versus = [group.versus for group in c.groups if group.versus is not None]
    num = sum(found.p is not None for found in versus)
    low, high = c.metric.bounds
    cut = "" if math.isinf(low) else f", cut at {low:g} and {high:g}"
    legend = [f"n: {c.repetitions} with a result, of all. Interval: of the mean, by Student's t{cut}."]
    if versus:
        pairs = {found.num_pairs > 0 for found in versus if found.mean is not None}
        kinds = {True: "paired", False: "without pairs"}
        kind = kinds[pairs.pop()] if len(pairs) == 1 else "paired where seeds match"
        tried, looks = c.choice.num_tried, c.num_looks
        counted = [f"{tried} settings tried"] * (tried > 1) + [f"look {looks}, squared"] * (looks > 1)
        settings = f" ({', '.join([f'{num} group' + 's' * (num > 1), *counted])})" if counted else ""
        corrected = f"; p: t-test{corrected_for(num * tried * looks**2)}{settings}" if num else ""
        legend[0] += f" Difference: from the baseline, {kind}{corrected}."
    if num > 1 and c.question.baseline is None:
        legend.append(
            "The best complete group is the baseline. A single p is optimistic: the same results picked and tested it "
            "(--baseline chooses beforehand)."
        )
    return [*legend, *([c.caution] if c.caution else [])]


def _missing(c: Comparison) -> list[str]:
    if not c.missing:
        return []
    cells = "; ".join(" ".join(f"{k}={v}" for k, v in cell.items()) for cell in c.missing[:_MAX_CELLS])
    more = "; ..." if len(c.missing) > _MAX_CELLS else ""
    return [f"missing: {len(c.missing)} of {c.num_cells} combinations have no run: {cells}{more}"]


def _target(c: Comparison) -> list[Section]:
    if (goal := c.question.goal) is None:
        return []
    num = sum(time.num_reached for time in c.group_times.values())
    title = f"{num} of {sum(group.num_runs for group in c.groups)} runs reach {goal}"
    medians = [(group, c.group_times[group.name]) for group in c.groups]
    times = Table(
        "times", "When the runs of a group first reached the target; no time if half of them did not reach it.",
        [f"median over the {c.repetitions}", "reached", *UNITS],
        [[group.name, f"{time.num_reached}/{group.num_runs}",
          *(number(time.times[unit] if math.isfinite(time.times[unit]) else None) for unit in UNITS)]
         for group, time in medians],
        items="groups", ranks=[time.times["updates"] for _, time in medians],
    )  # fmt: skip
    by_updates = c.profiles["updates"].scores
    scores = Table(
        "scores", "The area under the performance profile from 1 to 4, divided by 3.",
        [f"AlgoPerf score for {goal}", *c.profiles],
        [[name, *(f"{profile.scores[name]:.4f}" for profile in c.profiles.values())] for name in by_updates],
        items="scores", ranks=[-score for score in by_updates.values()],
    )  # fmt: skip
    return [Section("target", title, tables=[times, scores])]


def _verdict(c: Comparison) -> list[str]:
    """Return the verdict of the study of the runs, if there is one, then that of this comparison; how the settings were
    chosen; and a line for each incomplete group with a better mean that the verdict does not name.
    """
    verdict = [c.verdict.sentence] if c.study is None else c.study.lines(c.verdict, c.metric.name)
    chosen = [c.choice.sentence] if c.choice.sentence else []
    others = [g for g in passed_over(c.groups, c.winner, c.metric) if g.name != c.verdict.rival]
    lines = [f"Not counted: {g.name}, {number(g.estimate.mean)}, because {g.shortfall}." for g in others]
    return [*verdict, *_untuned(c), *_averaged(c), *chosen, *lines]


def _untuned(c: Comparison) -> list[str]:
    """Return a line if the verdict is about optimizers whose learning rates were not chosen by these runs."""
    rates = dict[str, set[str]]()
    for run in (run for group in c.groups for run in group.runs):
        rates.setdefault(label(run, "optimizer"), set()).add(label(run, LR))
    is_chosen = c.study is not None or LR in (c.question.best_over or ())
    if is_chosen or "optimizer" not in c.by or len(rates) < 2 or {"-"} in rates.values():
        return []
    shown = ", ".join(f"{name} {' and '.join(sorted(values))}" for name, values in rates.items())
    if all(len(values) == 1 for values in rates.values()):
        remedy = f"Sweep several and add --best-over {LR}, or run hydrant study with --tune {LR}."
        return [
            f"Not tuned: each optimizer has one {LR} ({shown}), and other rates may reverse this. {remedy}"
        ]
    if LR in c.by and c.factorial is None:
        return []  # each rate is a setting of its own
    text = f"Not tuned: the optimizers are not compared at the best of their {LR} ({shown})"
    return [f"{text}; --best-over {LR} does that."]


def _averaged(c: Comparison) -> list[str]:
    """Return a line if the runs of one seed differ in other keys."""
    keys, num = (
        c.groups[0].averaged_over if c.groups else (),
        max((len(g.cells) for g in c.groups), default=0),
    )
    if not keys or num < 2:
        return []
    each = f"Each of the {c.repetitions} counts once, by its mean over {num} settings of {', '.join(keys)}"
    return [f"{each}: runs that share it may be near-copies, which are no evidence of their own."]
