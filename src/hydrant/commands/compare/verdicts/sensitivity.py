"""The sensitivity of each optimizer to its learning rate: results over the rate, and the width of the basin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hydrant.commands.compare.evidence.lr_basin import Basin, find_basin
from hydrant.commands.compare.evidence.noise import spread
from hydrant.commands.compare.groups import Group, Metric
from hydrant.commands.compare.verdicts.cells import Cells, num_failed, result
from hydrant.terminal.numbers import number

LR = "optimizer.lr"
MIN_RATES = 3


@dataclass(frozen=True)
class Line:
    """The results of one optimizer over its learning rates, in ascending order."""

    name: str
    lrs: Sequence[float]
    nums: Sequence[int]  # results at each rate
    means: Sequence[float | None]  # None: no run has a result
    lows: Sequence[float | None]  # of the interval of the mean
    highs: Sequence[float | None]
    failed: Sequence[int]  # runs that failed or diverged at each rate
    basin: Basin | None  # None: no tolerance is known, or no rate has only good runs


@dataclass(frozen=True)
class Sensitivity:
    """The lines of all optimizers."""

    tolerance: float | None
    is_given: bool  # else it is the noise
    lines: Sequence[Line]
    sentences: Sequence[str]


def find_sensitivity(cells: Cells, metric: Metric, tolerance: float | None) -> Sensitivity | None:
    """Return the sensitivity to `optimizer.lr`; None if no optimizer has three learning rates."""
    if LR not in cells.keys:
        return None
    lines = {name: _by_rate(groups) for name, groups in cells.lines([LR]).items()}
    lines = {name: rates for name, rates in lines.items() if len(rates) >= MIN_RATES}
    if not lines:
        return None
    best = [min(rates.values(), key=lambda group: metric.rank(result(group))) for rates in lines.values()]
    chosen = tolerance if tolerance is not None else spread([[*g.results.values()] for g in best]).std or None
    found = [_line(name, rates, chosen, metric.mode) for name, rates in lines.items()]
    sensitivity = Sensitivity(chosen, tolerance is not None, found, [])
    return replace(sensitivity, sentences=_sentences(sensitivity))


def _by_rate(groups: Sequence[Group]) -> dict[float, Group]:
    """Return the configurations by their learning rate, in ascending order; those without a number are left out."""
    rates: dict[float, Group] = {}
    for group in groups:
        lr = group.runs[0].config.get(LR)
        if isinstance(lr, int | float) and lr > 0:
            rates[float(lr)] = group
    return dict(sorted(rates.items()))


def _line(name: str, rates: dict[float, Group], tolerance: float | None, mode: str) -> Line:
    groups, lrs = list(rates.values()), list(rates)
    estimates = [group.estimate for group in groups]
    return Line(
        name=name,
        lrs=lrs,
        nums=[estimate.num for estimate in estimates],
        means=[estimate.mean for estimate in estimates],
        lows=[estimate.low for estimate in estimates],
        highs=[estimate.high for estimate in estimates],
        failed=[num_failed(group) for group in groups],
        basin=None if tolerance is None else find_basin(lrs, [*map(result, groups)], tolerance, mode),
    )


def _sentences(found: Sensitivity) -> list[str]:
    if found.tolerance is None:
        return [
            "The basins have no width, because the noise over seeds is unknown. Add seeds, or say how much worse "
            "than the best is still good: --tolerance."
        ]
    source = "as given" if found.is_given else "the standard deviation over seeds at the best learning rates"
    sentences = [
        "The basin of an optimizer holds the learning rates whose mean is within "
        f"{number(found.tolerance)} of its best ({source})."
    ]
    sentences += [_line_sentence(line) for line in found.lines if line.basin is not None]
    sentences.append(
        "Between the tried rates, results are interpolated linearly in log(lr). In a wide basin, an lr that is a few "
        "times off still works. This says nothing about other settings, and basins move with batch size, width and "
        "budget."
    )
    return sentences


def _line_sentence(line: Line) -> str:
    basin = line.basin
    assert basin is not None
    at_least = "at least " if basin.is_low_open or basin.is_high_open else ""
    text = f"{line.name}: best at lr {basin.best_lr:g}, basin {at_least}a factor of {number(basin.factor)}"
    if basin.best_lr in (line.lrs[0], line.lrs[-1]):
        end = "smallest" if basin.best_lr == line.lrs[0] else "largest"
        return f"{text}. The best lr is the {end} tried, so try further."
    return f"{text}."
