"""The verdicts as sections."""

from __future__ import annotations

from dataclasses import replace

from hydrant.commands.compare.numbers import corrected_for, p_value, signed
from hydrant.commands.compare.question import Question
from hydrant.commands.compare.section import Section, Table
from hydrant.commands.compare.statistics import Difference
from hydrant.commands.compare.verdicts import Verdicts
from hydrant.commands.compare.verdicts.factorial import Factorial
from hydrant.commands.compare.verdicts.noise_floor import NoiseFloor, seeds_text
from hydrant.commands.compare.verdicts.sensitivity import Line, Sensitivity
from hydrant.commands.compare.verdicts.target import TargetVerdict
from hydrant.commands.compare.verdicts.tuning import Tuning
from hydrant.terminal.numbers import digits_of, interval, number


def verdict_sections(verdicts: Verdicts, question: Question) -> list[Section]:
    """Return a section for each verdict that there is. Those that nobody asked for are details."""
    v, asked = verdicts, question
    sections = [replace(_noise(v.noise), is_detail=asked.difference is None)]
    sections += [] if v.against is None else [_against(v.against)]
    if v.sensitivity is not None:
        sections.append(replace(_sensitivity(v.sensitivity), is_detail=asked.tolerance is None))
    if v.tuning is not None:
        sections.append(replace(_tuning(v.tuning), is_detail=asked.tuned is None))
    return sections


def factorial_section(found: Factorial, repetitions: str) -> Section:
    """Return what each key of a sweep changes, a line each, and which keys interact."""
    titles = ["difference", "95 % interval", "p (Holm)", "verdict"]
    effects = Table(
        "effects", "The best value of each key beside its others, over the settings of the other keys.",
        ["key", "best", "other", *titles],
        [[e.key, e.best, e.other, *_difference(e.lead, is_decided=e.is_decided)] for e in found.effects], 3,
        best=[place for place, e in enumerate(found.effects) if e.key in found.decided],
    )  # fmt: skip
    rows = [
        [" and ".join(i.keys), " over ".join(i.lead_of), " for ".join(i.change_to),
         *_difference(i.change, is_decided=i.is_decided)]
        for i in found.interactions
    ]  # fmt: skip
    changes = Table(
        "interactions", "How much the lead of a value changes with a value of another key.",
        ["do they interact?", "lead of", "with", *titles], rows, 3,
        best=[place for place, i in enumerate(found.interactions) if i.is_decided],
    )  # fmt: skip
    asked = str(found.verdict.leader).partition("=")[0]
    sentences = [
        f"Each of the {repetitions} counts once, by its mean over the settings of the other keys. p and intervals are "
        f"corrected for all {found.num_comparisons} comparisons of these tables. --by {asked} asks for "
        "one key alone: choose it before you see results."
    ]
    sentences += [
        f"{' and '.join(i.keys)} interact, so the best value of one depends on the other: --by {','.join(i.keys)} "
        "compares their settings."
        for i in found.interactions
        if i.is_decided
    ]
    if found.untested:
        names = "; ".join(map(" and ".join, found.untested))
        sentences.append(
            f"Undecided, for two {repetitions} that all their values share are missing: {names}."
        )
    return Section("effects", "What each key changes", sentences, [effects, changes])


def _difference(found: Difference, *, is_decided: bool) -> list[str]:
    ends = interval(found.low, found.high)
    return [signed(found.mean), ends, p_value(found.p_holm), "decided" if is_decided else "undecided"]


def _noise(noise: NoiseFloor) -> Section:
    named = [*noise.groups.items(), *([("pooled", noise.pooled)] if len(noise.groups) > 1 else [])]
    scatter = Table(
        "scatter", "The standard deviation of each group, with its interval by chi-square.",
        ["scatter over seeds", "n", "std", "95 % interval"],
        [[name, str(s.num), number(s.std), interval(s.low, s.high)] for name, s in named if s.degrees],
    )  # fmt: skip
    needs = Table(
        "seeds",
        f"Seeds with which a t-test (two-sided at 5 %{corrected_for(noise.num_comparisons)}) finds a true difference "
        "of this size in 80 of 100 sweeps; in brackets at the ends of the interval of the noise.",
        ["true difference", "size", "paired seeds", "seeds of each, unpaired"],
        [[n.about, number(n.difference), seeds_text(n.paired), seeds_text(n.unpaired)] for n in noise.needs],
    )  # fmt: skip
    return Section("noise", "Noise floor and seeds for a power of 80 %", noise.sentences, [scatter, needs])


def _against(verdict: TargetVerdict) -> Section:
    rows: list[list[str]] = []
    digits = digits_of(value for test in verdict.tests.values() for value in (test.mean, test.low, test.high))
    for name, test in verdict.tests.items():
        means = [number(test.mean, digits), interval(test.low, test.high, digits), signed(test.margin)]
        ps = [p_value(test.p_holm), signed(test.statistic), p_value(test.p)]
        rows.append([name, str(test.num), *means, *ps])
    table = Table(
        "against", f"The {verdict.test} of each group. Margin: by how much the mean is better than the target.",
        ["group", "n", "mean", "95 % interval", "margin", "p (Holm)", "margin √n", "p"], rows,
        best=[place for place, name in enumerate(verdict.tests) if name in verdict.passed], page_only=[7],
    )  # fmt: skip
    return Section("against", f"Against {verdict.target}", verdict.sentences, [table])


def _sensitivity(found: Sensitivity) -> Section:
    digits = digits_of(line.basin and line.basin.best for line in found.lines)
    table = Table(
        "basin",
        "The best learning rate of each optimizer, and the basin around it. ≥: the basin reaches the end of the tried "
        "rates, so it may be wider.",
        ["optimizer", "lrs", "best lr", "best", "basin", "factor", "lrs with failed runs"],
        [_basin_row(line, digits) for line in found.lines], page_only=[6],
    )  # fmt: skip
    sentences = [found.sentences[0], *found.sentences[1:][-1:]]  # those between are the rows
    return Section("sensitivity", "Sensitivity to the learning rate", sentences, [table])


def _basin_row(line: Line, digits: int) -> list[str]:
    basin, cells = line.basin, ["-"] * 4
    if basin is not None:
        low, high = "≤" if basin.is_low_open else "", "≥" if basin.is_high_open else ""
        cells = [
            f"{basin.best_lr:g}",
            number(basin.best, digits),
            f"{low}{basin.low:.2g} to {high}{basin.high:.2g}",
            f"{'≥' if low or high else ''}{number(basin.factor)}",
        ]
    return [line.name, str(len(line.lrs)), *cells, str(sum(num > 0 for num in line.failed))]


def _tuning(found: Tuning) -> Section:
    counts = [1, *[n for n in (2, 4, 8, 16, 32) if n < found.budget][-3:], found.budget]
    rows: list[list[str]] = []
    digits = digits_of(value for method in found.methods for value in method.curve.expected)
    for method in found.methods:
        curve = method.curve
        ends = None if curve.low is None or curve.high is None else (curve.low[-1], curve.high[-1])
        values = [number(curve.expected[n - 1], digits) for n in counts]
        counted = [
            str(method.num_trials),
            *values,
            interval(*ends, digits) if ends else "-",
            str(method.num_failed),
        ]
        rows.append([method.name, *counted])
    titles = ["method", "trials", "best of 1", *(f"of {n}" for n in counts[1:]), "95 % interval", "failed"]
    caption = "The expected best of n trials, with the bootstrap interval of the last one over the trials."
    table = Table("tuning", caption, titles, rows, page_only=[len(titles) - 1])
    return Section("tuning", "Tuning under equal budgets", found.sentences, [table])
