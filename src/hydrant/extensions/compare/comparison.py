"""`compare`: everything that the tables, the files and the page show, computed from the runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hydrant.config.metric_keys import mode_by_name, unknown_mode
from hydrant.config.schema import REPETITIONS
from hydrant.errors import ConfigError, check_known
from hydrant.extensions.compare import ranking, studied, tuning
from hydrant.extensions.compare.comparability import ComparisonWarning, find_warnings
from hydrant.extensions.compare.config_keys import differing_keys, mark_uncounted, repetitions_of
from hydrant.extensions.compare.factorial import Factorial, find_factorial
from hydrant.extensions.compare.groups import Group, Metric, Terms, bounds_of, group_runs
from hydrant.extensions.compare.noise_floor import NoiseFloor, find_noise_floor
from hydrant.extensions.compare.question import Question
from hydrant.extensions.compare.run import SEVERAL, Run
from hydrant.extensions.compare.time_to_target import GroupTime, Profile, group_time, profiles, time_to_target
from hydrant.extensions.compare.verdict import (
    TargetVerdict,
    Verdict,
    find_verdict,
    judge_target,
    of_one_quantity,
)
from hydrant.records.answers import SweepVerdict

LAST_UPDATE = "after the last update"


@dataclass(frozen=True)
class Verdicts:
    """What is said beyond the means; None where it is not asked for or the runs cannot say it. All have `sentences`."""

    noise: NoiseFloor
    against: TargetVerdict | None
    sensitivity: tuning.Sensitivity | None
    tuning: tuning.Tuning | None


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    question: Question
    terms: Terms
    runs: Sequence[Run]
    keys: Sequence[str]  # in which the runs differ
    by: Sequence[str]  # the grouping keys
    groups: Sequence[Group]
    winner: Group | None
    runner_up: Group | None
    baseline: Group | None  # the winner, if none is asked for
    warnings: Sequence[ComparisonWarning]
    times: Mapping[str, Mapping[str, float]]  # to the goal, by run and unit
    choice: ranking.Choice  # of `--best-over`
    verdicts: Verdicts
    verdict: Verdict
    factorial: Factorial | None  # for a sweep over several keys, unless `by` asks for some
    study: SweepVerdict | None  # if all runs are those of a study

    @property
    def metric(self) -> Metric:
        return self.terms.metric

    @cached_property
    def group_times(self) -> Mapping[str, GroupTime]:
        return {group.name: group_time(group.runs, self.times) for group in self.groups} if self.times else {}

    @cached_property
    def profiles(self) -> Mapping[str, Profile]:
        """The performance profiles by unit."""
        return profiles([run for run in self.runs if run.state != SEVERAL], self.by, self.times)

    @property
    def moment(self) -> str:
        """The weights whose results are compared, in words."""
        counted = [run for run in self.runs if self.metric.has_result(run)]
        updates = {run.name: self.metric.measured_at(run) for run in counted}
        if all(updates[run.name] in (None, run.summary.get("num_updates")) for run in counted):
            return LAST_UPDATE
        known = sorted({num for num in updates.values() if num is not None})
        ends = " to ".join(f"{num:,}" for num in dict.fromkeys((known[0], known[-1])))
        return f"{'of the checkpoints that were tested, ' * self.metric.is_test}after {ends} updates"

    @property
    def caution(self) -> str:
        """Why intervals are too small; "" if there is no known reason."""
        of_folds = (
            "Folds share training samples, so the intervals of means are too small. Differences and p are corrected "
            "for it (Nadeau & Bengio, 2003)."
        )
        texts = [of_folds] * ("folds" in self.terms.repetitions) + [studied.LOOKED_OFTEN] * (
            self.study is not None
        )
        return " ".join(texts)


def compare(runs: Sequence[Run], question: Question) -> Comparison:
    """Compare the last value of a metric, grouped by keys.

    Raises:
        ConfigError: unknown key, metric, baseline or target, or a question that the runs cannot answer.
    """
    asked, every_key = _choose_metric(runs, question.metric, question.mode), differing_keys(runs)
    marked = mark_uncounted(runs, [*every_key, *(question.by or ())])
    tested, study = studied.tested_runs(marked, studied.find_study(runs))
    keys = differing_keys(tested)
    by, over = _asked_keys(tested, question, keys, study)
    validation = _choose_metric(tested, None, None) if over and asked.is_test else asked
    choice = ranking.choose_best(tested, by, over, keys, asked, validation)
    counted = [run for run in choice.runs if run.state != SEVERAL]
    other_keys = [key for key in keys if key not in (*by, *over)]
    terms = Terms(choice.metric, repetitions_of(other_keys), choice.num_tried, studied.count_looks(marked))
    groups, baseline = _groups(counted, by, other_keys, terms, question.baseline)
    winner = ranking.find_winner(groups, terms.metric)
    runner_up = ranking.find_winner([group for group in groups if group is not winner], terms.metric)
    factorial = None if question.by is not None or study else find_factorial(counted, by, other_keys, terms)
    num_rivals = max(sum(group.estimate.mean is not None for group in groups) - 1, 1)
    num = factorial.num_comparisons // terms.num_looks**2 if factorial else terms.num_tried * num_rivals
    noise = find_noise_floor(groups, [*filter(None, (winner, runner_up))], terms, question.difference, num)
    cells = tuning.cells_of([run for run in marked if run.state != SEVERAL], every_key, terms.metric)
    verdicts = Verdicts(
        noise,
        judge_target(groups, every_key, question, terms.num_looks),
        tuning.find_sensitivity(cells, terms.metric, question.tolerance),
        tuning.find_tuning(cells, terms.metric, question.tuned),
    )
    answer = factorial.verdict if factorial else find_verdict(groups, noise, terms)
    verdict = of_one_quantity(answer, counted, terms.metric)
    verdict = of_one_quantity(verdict, tested, validation) if over else verdict
    times = {run.name: time_to_target(run, question.goal) for run in choice.runs} if question.goal else {}
    warnings = find_warnings(tested, groups, asked, factorial.left_out if factorial else (), times)
    return Comparison(
        question, terms, choice.runs, keys, by, groups, winner, runner_up, baseline, warnings, times,
        choice, verdicts, studied.limited(verdict, study, asked.name),
        factorial if verdict is answer else None, study,
    )  # fmt: skip


def _asked_keys(
    runs: Sequence[Run], question: Question, keys: Sequence[str], study: SweepVerdict | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the grouping keys and those of `--best-over`. Raises as `compare` does, for targets too."""
    for flag, target in (("--against", question.fixed_target), ("--target", question.goal)):
        if target is not None:
            _check_metric(runs, flag, target.metric)
    over = _known_keys("--best-over", runs, question.best_over or (), keys)
    over = [] if study is not None and study.num_tuning else over  # the study has chosen them
    if question.by is None:
        return [key for key in keys if key not in (*REPETITIONS, *over)], over
    return _known_keys("--by", runs, question.by, keys), over


def _groups(
    runs: Sequence[Run], by: Sequence[str], other_keys: Sequence[str], terms: Terms, baseline: str | None
) -> tuple[Sequence[Group], Group | None]:
    """Return the groups with their differences from the baseline: the winner, if none is asked for."""
    groups = group_runs(runs, by, other_keys, terms.metric)
    is_given = baseline is not None
    base = ranking.find_baseline(groups, baseline) if is_given else ranking.find_winner(groups, terms.metric)
    if base is None:
        return groups, None
    compared = ranking.with_differences(groups, base, terms.factor)
    return compared, next(new for new, group in zip(compared, groups, strict=True) if group is base)


def _choose_metric(runs: Sequence[Run], name: str | None, mode: str | None) -> Metric:
    """Return the metric to compare, by default the one of the best checkpoints, and its mode."""
    pairs = [(run.config.get("best.metric"), run.config.get("best.mode")) for run in runs]
    deciding = Counter((m, way) for m, way in pairs if isinstance(m, str) and way in ("max", "min"))
    has_accuracy = any("val/accuracy" in run.series for run in runs)
    fallback = ("val/accuracy", "max") if has_accuracy else ("val/loss", "min")
    default_name, default_mode = deciding.most_common(1)[0][0] if deciding else fallback
    chosen: str = default_name if name is None else name
    _check_metric(runs, "--metric", chosen)
    if mode is None and chosen == default_name:
        mode = default_mode
    is_speed = chosen.startswith("perf/")  # of memory, the name says it
    if (mode := mode or mode_by_name(chosen) or ("max" if is_speed else None)) is None:
        raise unknown_mode("--mode", chosen)
    return Metric(chosen, mode, bounds_of(chosen, runs))


def _check_metric(runs: Iterable[Run], flag: str, name: str) -> None:
    metrics = {key for run in runs for key in run.series}
    if not metrics:
        raise ConfigError("RUNS", "none of the runs has logged a metric yet; their summaries give the reason")
    check_known(flag, "metric", name, metrics)


def _known_keys(flag: str, runs: Sequence[Run], asked: Sequence[str], keys: Sequence[str]) -> list[str]:
    known = {key for run in runs for key in run.config}
    for key in asked:
        check_known(flag, "key", key, known, keys)
    return list(asked)
