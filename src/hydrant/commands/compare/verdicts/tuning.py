"""Tuning: the expected best of n trials of each method, and the sensitivity of each optimizer to its learning rate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hydrant.checks import unknown_name
from hydrant.commands.compare import statistics
from hydrant.commands.compare.config_keys import label
from hydrant.commands.compare.groups import NOT_FINITE, Group, Metric, group_runs, independent, name_of
from hydrant.commands.compare.run import Run
from hydrant.config.schema import REPETITIONS
from hydrant.runs.folder import RunStatus
from hydrant.terminal.text import number


@dataclass(frozen=True)
class Cells:
    """The runs grouped by all keys in which they differ except the seed and the fold, whatever `--by` says."""

    groups: Sequence[Group]
    keys: Sequence[str]

    def lines(self, without: Sequence[str]) -> dict[str, list[Group]]:
        """Return sets of configurations that differ only in the keys `without`, by the name of what a set shares."""
        lines: dict[str, list[Group]] = {}
        for group in self.groups:
            shared = {key: value for key, value in group.labels.items() if key not in without}
            lines.setdefault(name_of(shared), []).append(group)
        return lines


def cells_of(runs: Sequence[Run], keys: Sequence[str], metric: Metric) -> Cells:
    """Return the configurations of runs that differ in `keys`."""
    without_seeds = [key for key in keys if key not in REPETITIONS]
    return Cells(group_runs(runs, without_seeds, keys, metric), without_seeds)


def result(group: Group) -> float | None:
    """Return the mean of a configuration; None if one of its runs failed or diverged, or none has finished."""
    return None if num_failed(group) else group.estimate.mean


def num_failed(group: Group) -> int:
    """Return the number of runs that failed or diverged. Runs that are missing or still train do not count."""
    return group.states.get(RunStatus.FAILED, 0) + group.states.get(NOT_FINITE, 0)


_TUNED = ("optimizer.", "optimizers.", "scheduler.", "schedules.")
"""Keys below these are settings of a method; all others, such as `optimizer` or `model`, make another method."""

MIN_TRIALS = 3


@dataclass(frozen=True)
class Method:
    """The results of one method with its trials."""

    name: str
    num_trials: int
    # Trials of which a run failed or diverged. Each counts as the worst finished trial of all methods.
    num_failed: int
    curve: statistics.BestOfN  # over 1 to the common budget


@dataclass(frozen=True)
class Tuning:
    """The methods, tuned with the same number of trials."""

    tuned: Sequence[str]
    budget: int  # trials: the fewest of any method
    methods: Sequence[Method]
    sentences: Sequence[str]


def tuned_keys(cells: Cells, given: Sequence[str] | None) -> list[str]:
    """Return the keys whose values are trials: the given ones, or the settings of optimizers and schedules.

    Raises:
        ConfigError: the runs do not differ in one of the given keys.
    """
    if given is None:
        return [key for key in cells.keys if key.startswith(_TUNED)]
    for key in given:
        if key not in cells.keys:
            raise unknown_name("--tuned", "key", key, cells.keys)
    return list(given)


def find_tuning(cells: Cells, metric: Metric, tuned: Sequence[str] | None) -> Tuning | None:
    """Return the curves; None unless all methods have at least three trials. Raises as `tuned_keys` does."""
    keys = tuned_keys(cells, tuned)
    lines = cells.lines(keys)
    budget = min(map(len, lines.values()), default=0)
    finite = [mean for group in cells.groups if (mean := result(group)) is not None]
    if not keys or budget < MIN_TRIALS or not finite:
        return None
    worst = max(finite, key=metric.rank)
    methods = list[Method]()
    for name, groups in lines.items():
        results = [result(group) for group in groups]
        best = statistics.best_of_n(
            [worst if value is None else value for value in results], metric.mode, budget
        )
        methods.append(Method(name, len(groups), results.count(None), best))
    found = Tuning(keys, budget, methods, [])
    return replace(found, sentences=_sentences(found, cells, metric))


def _sentences(found: Tuning, cells: Cells, metric: Metric) -> list[str]:
    keys = ", ".join(found.tuned)
    sentences = [f"A trial is one setting of {keys}; its result is the mean over its seeds."]
    numbers = {method.name: method.num_trials for method in found.methods}
    if len(set(numbers.values())) > 1:
        most = max(numbers, key=numbers.__getitem__)
        sentences.append(
            f"The methods have {found.budget} to {numbers[most]} trials; all curves end at {found.budget}, "
            "so that no method is tuned more than another."
        )
    if failed := sum(method.num_failed for method in found.methods):
        sentences.append(f"{failed} trials failed or diverged; they count as the worst finished trial.")
    if len(found.methods) > 1:
        sentences.append(_leaders(found, metric))
    sentences.append(
        "The curves assume trials that are drawn at random from the tried settings, with replacement (Dodge et al., "
        "2019). They underestimate near the whole budget, and another search range gives other curves. The best of n "
        "is picked by these results, so new seeds will be a little worse."
    )
    ranges = {_ranges(groups, found.tuned) for groups in cells.lines(found.tuned).values()}
    if len(ranges) > 1:
        sentences.append(
            "The methods were tried on different values, so the choice of the ranges is part of the comparison."
        )
    return sentences


def _leaders(found: Tuning, metric: Metric) -> str:
    """Return which method has the best expected result with how many trials."""
    leaders = [
        min(found.methods, key=lambda method, n=n: metric.rank(method.curve.expected[n]))
        for n in range(found.budget)
    ]
    spans: list[tuple[int, Method]] = []
    for n, leader in enumerate(leaders, 1):
        if not spans or spans[-1][1] is not leader:
            spans.append((n, leader))
    texts = [
        f"{leader.name} from {n} trial{'s' * (n != 1)} on ({number(leader.curve.expected[-1])} with {found.budget})"
        for n, leader in spans
    ]
    overlap = _overlaps(found, leaders[-1])
    doubt = f" With {found.budget}, the intervals of {overlap} overlap that of the best." if overlap else ""
    return f"Best expected {metric.name}: {', '.join(texts)}.{doubt}"


def _overlaps(found: Tuning, leader: Method) -> str:
    """Return how many other methods have an interval that overlaps the leader's, in words; "" if none has."""
    num = 0
    for other in found.methods:
        if other is leader or other.curve.low is None or other.curve.high is None:
            continue
        assert leader.curve.low is not None and leader.curve.high is not None
        num += other.curve.low[-1] <= leader.curve.high[-1] and leader.curve.low[-1] <= other.curve.high[-1]
    return "" if num == 0 else f"{num} of {len(found.methods) - 1} others"


def _ranges(groups: Sequence[Group], tuned: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted({tuple(label(group.runs[0], key) for key in tuned) for group in groups}))


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
    basin: statistics.Basin | None  # None: no tolerance is known, or no rate has only good runs


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
    chosen = (
        tolerance
        if tolerance is not None
        else statistics.spread([independent(g.results) for g in best]).std or None
    )
    found = [_line(name, rates, chosen, metric.mode) for name, rates in lines.items()]
    sensitivity = Sensitivity(chosen, tolerance is not None, found, [])
    return replace(sensitivity, sentences=_basin_sentences(sensitivity))


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
        basin=None
        if tolerance is None
        else statistics.find_basin(lrs, [*map(result, groups)], tolerance, mode),
    )


def _basin_sentences(found: Sensitivity) -> list[str]:
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
