"""The best values of keys (`--best-over`), the expected best of n trials, and the sensitivity to the learning rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hydrant.config.groups import REPETITIONS
from hydrant.errors import ConfigError, check_known
from hydrant.extensions.compare import statistics
from hydrant.extensions.compare.groups import (
    NOT_FINITE,
    Group,
    Metric,
    bounds_of,
    group_runs,
    independent,
    name_of,
    seed_of,
)
from hydrant.extensions.compare.ranking import find_winner
from hydrant.extensions.compare.run import REPEAT, SEVERAL, Run, label, repetition
from hydrant.runs.folder import RunStatus
from hydrant.terminal.text import number

FRESH, TEST, SAME = "fresh seeds", "test", "same results"
"""What the chosen settings are judged on."""

_TESTS = {"val": "test", "val_ema": "test_ema"}
"""The test that has the metrics of a validation."""


@dataclass(frozen=True)
class Choice:
    """The runs of the chosen settings. Without `--best-over`, all runs."""

    runs: Sequence[Run]
    metric: Metric  # which judges
    values: Mapping[str, Mapping[str, str]]  # the chosen values, by group and key
    judged_on: str | None = None
    num_tried: int = 1  # the most settings of a group, whose best one was chosen by the runs that judge it
    sentence: str = ""


@dataclass(frozen=True)
class _Chosen:
    """The best setting of a group."""

    group: Group
    setting: Group
    choosing: Sequence[Run]  # by which it was chosen, of all settings
    num_settings: int

    @property
    def runs(self) -> list[Run]:
        values = self.setting.labels.items()
        return [run for run in self.group.runs if all(label(run, key) == value for key, value in values)]

    @property
    def fresh(self) -> list[Run]:
        """The runs of the setting that share no seed or fold with those that chose it; all, if there was no choice."""
        keys = [key for key in REPETITIONS if len({label(run, key) for run in self.group.runs}) > 1]
        chose = {word for run in self.choosing for word in enumerate(seed_of(run, keys).split())}
        words = [seed_of(run, keys).split() for run in self.runs]
        shared = [any(word in chose and word[1] != "-" for word in enumerate(of_run)) for of_run in words]
        are_fresh = [bool(of_run) and not is_shared for of_run, is_shared in zip(words, shared, strict=True)]
        pairs = zip(self.runs, are_fresh, strict=True)
        return [run for run, is_fresh in pairs if is_fresh or self.num_settings == 1]


def choose_best(
    runs: Sequence[Run],
    by: Sequence[str],
    over: Sequence[str],
    keys: Sequence[str],
    metric: Metric,
    validation: Metric,
) -> Choice:
    """Return the runs with the best values of the keys `over` in each group, and how they are judged.

    The seeds that all settings of a group have choose. Other seeds of the best one judge it, if each group has them;
    else its test; else the same results. A test of the same runs is optimistic too, because a run that is lucky in
    validation often is in the test. All runs of a group without a result stay.

    Raises:
        ConfigError: a key forms the groups, or there is no metric of validation to choose by.
    """
    if not over:
        return Choice(runs, metric, {})
    if validation.is_test:
        raise ConfigError("--best-over", "needs a metric of validation, because a test must not choose")
    counted = [run for run in runs if run.state not in (SEVERAL, REPEAT)]
    groups = group_runs(counted, by, keys, validation)
    best_of_each = [_choose(group, over, keys, validation) for group in groups]
    chosen = [best for best in best_of_each if best is not None]
    without = [group for group, best in zip(groups, best_of_each, strict=True) if best is None]
    judged_on, judged, judge = _judge(chosen, metric)
    judged += _not_chosen(without, judge, validation)
    values = {best.group.name: best.setting.labels for best in chosen}
    num_tried = 1 if judged_on == FRESH else max((best.num_settings for best in chosen), default=1)
    sentence = _sentence(chosen, over, validation, judged_on, judge)
    return Choice(judged, judge, values, judged_on, num_tried, sentence)


def _choose(group: Group, over: Sequence[str], keys: Sequence[str], metric: Metric) -> _Chosen | None:
    """Return the best setting of a group; None without results."""
    settings = group_runs(group.runs, over, keys, metric)
    seeds = [{repetition(run) for run in setting.runs} for setting in settings]
    common = set[str].intersection(*seeds) or set[str].union(*seeds)
    choosing = [run for run in group.runs if repetition(run) in common]
    best = find_winner(group_runs(choosing, over, keys, metric), metric)
    return None if best is None else _Chosen(group, best, choosing, len(settings))


def _not_chosen(groups: Sequence[Group], judge: Metric, validation: Metric) -> list[Run]:
    """Return the runs of groups without a result to choose by. They must have none that would be judged."""
    for group in groups:
        if any(judge.has_result(run) for run in group.runs):
            message = f"{group.name} has results of {judge.name}, but none of {validation.name} to choose by"
            raise ConfigError("--best-over", message)
    return [run for group in groups for run in group.runs]


def _judge(chosen: Sequence[_Chosen], metric: Metric) -> tuple[str, list[Run], Metric]:
    """Return what judges the settings, the runs and the metric."""
    runs = [run for best in chosen for run in best.runs]
    if chosen and all(any(metric.has_result(run) for run in best.fresh) for best in chosen):
        return FRESH, [run for best in chosen for run in best.fresh], metric
    if metric.is_test:
        return TEST, runs, metric
    phase, _, rest = metric.name.partition("/")
    if phase not in _TESTS:
        return SAME, runs, metric
    name = f"{_TESTS[phase]}/{rest}"
    test = replace(metric, name=name, bounds=bounds_of(name, runs))
    with_result = [run for run in runs if metric.has_result(run)]
    if with_result and all(test.has_result(run) for run in with_result):
        return TEST, runs, test
    return SAME, runs, metric


def _sentence(
    chosen: Sequence[_Chosen], over: Sequence[str], validation: Metric, judged_on: str, judge: Metric
) -> str:
    if not chosen:
        return f"No run has a result of {validation.name}, so no {' and '.join(over)} is chosen."
    if all(best.num_settings == 1 for best in chosen):
        return f"Each group has one {' and '.join(over)} at most, so none is chosen."
    values = "; ".join(f"{c.group.name}: {', '.join(c.setting.labels.values())}" for c in chosen)
    text = f"The best {' and '.join(over)} of each group, chosen by {validation.name}, is shown ({values})."
    if judged_on == FRESH:
        seeds = sorted({repetition(run) for best in chosen for run in best.fresh})
        return f"{text} It is judged on {judge.name} of fresh seeds, which did not choose it ({', '.join(seeds)})."
    remedy = "Fresh seeds of the best settings give fair means."
    if judged_on == TEST:
        return f"{text} It is judged on {judge.name} of the same runs, so the means may be too good. {remedy}"
    means = "the comparisons are corrected for that, but the means are too good"
    return f"{text} It is judged on the results that chose it: {means}. {remedy}"


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


def find_tuning(cells: Cells, metric: Metric, tuned: Sequence[str] | None) -> Tuning | None:
    """Return the curves; None unless all methods have at least three trials.

    Args:
        tuned: the keys whose values are trials; None: the settings of optimizers and schedules.

    Raises:
        ConfigError: the runs do not differ in one of these keys.
    """
    keys = [key for key in cells.keys if key.startswith(_TUNED)] if tuned is None else tuned
    for key in keys:
        check_known("--tuned", "key", key, cells.keys)
    lines = cells.lines(keys)
    budget = min(map(len, lines.values()), default=0)
    finite = [mean for group in cells.groups if (mean := result(group)) is not None]
    if not keys or budget < MIN_TRIALS or not finite:
        return None
    worst = max(finite, key=metric.rank)
    methods = list[Method]()
    for name, groups in lines.items():
        results = [result(group) for group in groups]
        trials = [worst if value is None else value for value in results]
        curve = statistics.best_of_n(trials, metric.mode, budget)
        methods.append(Method(name, len(groups), results.count(None), curve))
    tuning = Tuning(keys, budget, methods, [])
    return replace(tuning, sentences=_sentences(tuning, cells, metric))


def _sentences(tuning: Tuning, cells: Cells, metric: Metric) -> list[str]:
    keys = ", ".join(tuning.tuned)
    sentences = [f"A trial is one setting of {keys}; its result is the mean over its seeds."]
    numbers = {method.name: method.num_trials for method in tuning.methods}
    if len(set(numbers.values())) > 1:
        most = max(numbers, key=numbers.__getitem__)
        sentences.append(
            f"The methods have {tuning.budget} to {numbers[most]} trials; all curves end at {tuning.budget}, "
            "so that no method is tuned more than another."
        )
    if failed := sum(method.num_failed for method in tuning.methods):
        sentences.append(f"{failed} trials failed or diverged; they count as the worst finished trial.")
    if len(tuning.methods) > 1:
        sentences.append(_leaders(tuning, metric))
    sentences.append(
        "The curves assume trials that are drawn at random from the tried settings, with replacement (Dodge et al., "
        "2019). They underestimate near the whole budget, and another search range gives other curves. The best of n "
        "is picked by these results, so new seeds will be a little worse."
    )
    ranges = {_ranges(groups, tuning.tuned) for groups in cells.lines(tuning.tuned).values()}
    if len(ranges) > 1:
        sentences.append(
            "The methods were tried on different values, so the choice of the ranges is part of the comparison."
        )
    return sentences


def _leaders(tuning: Tuning, metric: Metric) -> str:
    """Return which method has the best expected result with how many trials."""
    leader, budget, texts = None, tuning.budget, list[str]()
    for n in range(budget):
        best = min(tuning.methods, key=lambda method, n=n: metric.rank(method.curve.expected[n]))
        if best is not leader:
            result_of_all = f"{number(best.curve.expected[-1])} with {budget}"
            texts.append(f"{best.name} from {n + 1} trial{'s' * (n > 0)} on ({result_of_all})")
        leader = best
    return f"Best expected {metric.name}: {', '.join(texts)}."


def _ranges(groups: Sequence[Group], tuned: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted({tuple(label(group.runs[0], key) for key in tuned) for group in groups}))


LR = "optimizer.lr"

MIN_RATES = 2


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
    at_end: Sequence[str]  # the best rates that are the smallest or the largest tried, with their optimizers


def find_sensitivity(cells: Cells, metric: Metric, tolerance: float | None) -> Sensitivity | None:
    """Return the sensitivity to `optimizer.lr`; None if no optimizer has two learning rates."""
    if LR not in cells.keys:
        return None
    lines = {name: _by_rate(groups) for name, groups in cells.lines([LR]).items()}
    lines = {name: rates for name, rates in lines.items() if len(rates) >= MIN_RATES}
    if not lines:
        return None
    best = [(n, r, min(r, key=lambda lr: metric.rank(result(r[lr])))) for n, r in lines.items()]
    at_end = [f"{lr:g} of {n}" for n, r, lr in best if lr in (min(r), max(r)) and result(r[lr]) is not None]
    noise = statistics.spread([independent(r[lr].results) for _, r, lr in best]).std or None
    chosen = noise if tolerance is None else tolerance
    shown = [_line(name, rates, chosen, metric.mode) for name, rates in lines.items()]
    sensitivity = Sensitivity(chosen, tolerance is not None, shown, [], at_end)
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
    estimates, results = [group.estimate for group in groups], [*map(result, groups)]
    return Line(
        name,
        lrs,
        [e.num for e in estimates],
        [e.mean for e in estimates],
        [e.low for e in estimates],
        [e.high for e in estimates],
        [num_failed(group) for group in groups],
        None if tolerance is None else statistics.find_basin(lrs, results, tolerance, mode),
    )


def _basin_sentences(sensitivity: Sensitivity) -> list[str]:
    if sensitivity.tolerance is None:
        return [
            "The basins have no width, because the noise over seeds is unknown. Add seeds, or say how much worse "
            "than the best is still good: --tolerance."
        ]
    noise = "the standard deviation over seeds at the best learning rates"
    source = "as given" if sensitivity.is_given else noise
    return [
        "The basin of an optimizer holds the learning rates whose mean is within "
        f"{number(sensitivity.tolerance)} of its best ({source}).",
        "Between the tried rates, results are interpolated linearly in log(lr). In a wide basin, an lr that is a few "
        "times off still works. This says nothing about other settings, and basins move with batch size, width and "
        "budget.",
    ]
