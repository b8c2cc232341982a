"""`compare`: everything that the tables, the files and the page show, with warnings and the study of the runs.

Of a study, only the runs of its test are compared. Those of its tuning chose the settings, so they flatter them.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from msgspec import structs

from hydrant.clock import Duration
from hydrant.config.groups import REPETITIONS
from hydrant.config.metric_keys import differing_definitions, mode_by_name, unknown_mode
from hydrant.errors import ConfigError, RecordError, check_known, first_few
from hydrant.extensions.compare import ranking, tuning
from hydrant.extensions.compare.groups import Group, Metric, Terms, are_balanced, bounds_of, group_runs
from hydrant.extensions.compare.ranking import NoiseFloor, find_noise_floor
from hydrant.extensions.compare.run import (
    SEVERAL,
    Run,
    differing_keys,
    is_data_key,
    label,
    mark_uncounted,
    repetitions_of,
)
from hydrant.extensions.compare.sources import Question
from hydrant.extensions.compare.verdict import (
    Factorial,
    Verdict,
    find_factorial,
    find_verdict,
    is_beaten,
    of_one_quantity,
)
from hydrant.installation import entry_points
from hydrant.records import SweepVerdict
from hydrant.runs.folder import RunStatus
from hydrant.sweeps.plan import usable_plan
from hydrant.terminal.console import notice

LAST_UPDATE = "after the last update"


@dataclass(frozen=True)
class ComparisonWarning:
    """A warning about runs or groups."""

    about: str
    text: str


@dataclass(frozen=True)
class Verdicts:
    """What is said beyond the means; None where it is not asked for or the runs cannot say it. All have `sentences`."""

    noise: NoiseFloor
    against: ranking.TargetVerdict | None
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
    baseline: Group | None  # the winner, if none is asked for
    warnings: Sequence[ComparisonWarning]
    times: Mapping[str, Mapping[str, float]]  # to the goal, by run and unit
    choice: tuning.Choice  # of `--best-over`
    verdicts: Verdicts
    verdict: Verdict
    factorial: Factorial | None  # for a sweep over several keys, unless `by` asks for some
    study: SweepVerdict | None  # if all runs are those of a study

    @property
    def metric(self) -> Metric:
        return self.terms.metric

    @cached_property
    def group_times(self) -> Mapping[str, ranking.GroupTime]:
        groups = self.groups if self.times else ()
        return {group.name: ranking.group_time(group.runs, self.times) for group in groups}

    @cached_property
    def profiles(self) -> Mapping[str, ranking.Profile]:
        """The performance profiles by unit."""
        return ranking.profiles([run for run in self.runs if run.state != SEVERAL], self.by, self.times)

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

    def verdict_of(self, group: Group) -> str:
        """Return whether a group is better or worse than the baseline beyond chance, in a word."""
        base, is_open = self.baseline, self.study is not None and self.study.status != "decided"
        if group.name == self.verdict.winner:
            return "best"
        if group is base or base is None or group.versus is None or is_open:
            return "baseline" if group is base else "-"
        if self.verdict.leader is None:  # a loss that is another quantity in each has none
            return "undecided"
        if is_beaten(group, base, self.metric):
            return "worse"
        other_way = replace(base, versus=group.versus.negated())
        return "better" if is_beaten(other_way, group, self.metric) else "undecided"

    @property
    def caution(self) -> str:
        """Why intervals are too small; "" if there is no known reason."""
        of_folds = (
            "Folds share training samples, so the intervals of means are too small. Differences and p are corrected "
            "for it (Nadeau & Bengio, 2003)."
        )
        texts = [of_folds] * ("folds" in self.terms.repetitions) + [LOOKED_OFTEN] * (self.study is not None)
        return " ".join(texts)


def compare(runs: Sequence[Run], question: Question) -> Comparison:
    """Compare the last value of a metric, grouped by keys.

    Raises:
        ConfigError: unknown key, metric, baseline or target, or a question that the runs cannot answer.
    """
    asked, every_key = _choose_metric(runs, question.metric, question.mode), differing_keys(runs)
    marked = mark_uncounted(runs, [*every_key, *(question.by or ())])
    tested, study = tested_runs(marked, find_study(runs))
    keys, goal = differing_keys(tested), question.goal
    by, over = _asked_keys(tested, question, keys, study)
    validation = _choose_metric(tested, None, None) if over and asked.is_test else asked
    choice = tuning.choose_best(tested, by, over, keys, asked, validation)
    counted = [run for run in choice.runs if run.state != SEVERAL]
    other_keys = [key for key in keys if key not in (*by, *over)]
    repeated, is_study = repetitions_of(other_keys), study is not None
    terms = Terms(choice.metric, repeated, choice.num_tried, count_looks(marked), is_study)
    groups, baseline = _groups(counted, by, other_keys, terms, question.baseline)
    winner = ranking.find_winner(groups, terms.metric)
    runner_up = ranking.find_winner([group for group in groups if group is not winner], terms.metric)
    of_keys = None if question.by is not None or study else find_factorial(counted, by, other_keys, terms)
    factorial, answer = of_keys or (None, None)
    num = factorial.num_comparisons // terms.num_looks**2 if factorial else None
    noise = find_noise_floor(groups, [*filter(None, (winner, runner_up))], terms, question.difference, num)
    cells = tuning.cells_of([run for run in marked if run.state != SEVERAL], every_key, terms.metric)
    verdicts = Verdicts(
        noise,
        ranking.judge_target(groups, every_key, question, terms.num_looks),
        tuning.find_sensitivity(cells, terms.metric, question.tolerance),
        tuning.find_tuning(cells, terms.metric, question.tuned),
    )
    verdict = of_one_quantity(answer or find_verdict(groups, noise, terms), counted, terms.metric)
    verdict = of_one_quantity(verdict, tested, validation) if over else verdict
    times = {run.name: ranking.time_to_target(run, goal) for run in choice.runs if goal}
    warnings = find_warnings(tested, groups, asked, factorial.left_out if factorial else (), times)
    return Comparison(
        question, terms, choice.runs, keys, by, groups, winner, baseline, warnings, times,
        choice, verdicts, limited(verdict, study, asked.name),
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
    average = default_name.replace("/", "_ema/", 1)
    differ = len({run.config.get("averaging") for run in runs}) > 1
    is_chosen = any("best.metric" in run.overrides for run in runs)
    if differ and not is_chosen and any(average in run.series for run in runs):
        default_name = average  # what each run offers
    chosen: str = default_name if name is None else name
    _check_metric(runs, "--metric", chosen)
    if mode is None and chosen.partition("/")[2] == default_name.partition("/")[2]:  # maybe of another split
        mode = default_mode
    if (mode := mode or mode_by_name(chosen)) is None:
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


LOOKED_OFTEN = (
    "The study chose the number of runs by their results. Intervals and p of this comparison are those of a number "
    "chosen beforehand, so they claim too much."
)


def verdict_lines(study: SweepVerdict, verdict: Verdict, metric: str) -> list[str]:
    """Return the verdict of the study if it is about the metric, that of the comparison, and what was compared."""
    tuning = ""
    if num := study.num_tuning:
        runs = "run of its tuning is" if num == 1 else "runs of its tuning are"
        tuning = f" The {num} {runs} left out; study.md lists them."
    if study.metric == metric:
        holds = "It holds although the study looked at its runs after each seed."
        return [study.sentence, f"This is the verdict of {study.file}. {holds}{tuning}", verdict.sentence]
    doubt = f"{study.metric} decided their number, so this claims too much if both metrics go together."
    return [verdict.sentence, f"These are runs of {study.file}. {doubt}{tuning}"]


def find_study(runs: Sequence[Run]) -> SweepVerdict | None:
    """Return the verdict of the study of all runs; None if they are of none."""
    folders = {None if run.folder is None else run.folder.parent.resolve() for run in runs}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is None:
        return None
    try:
        answers = [point.load()(folder) for point in entry_points("hydrant.verdicts").values()]
    except RecordError as error:
        notice(f"the verdict of the study is unknown: {error}")
        return None
    return next(filter(None, answers), None)


def count_looks(runs: Sequence[Run]) -> int:
    """Return how often the results of these runs could be looked at, by the records of their sweeps."""
    sweeps = {run.folder.parent for run in runs if run.folder is not None}
    return 1 + sum(usable_plan(sweep)[0].num_seed_additions for sweep in sweeps)


def tested_runs(runs: Sequence[Run], study: SweepVerdict | None) -> tuple[Sequence[Run], SweepVerdict | None]:
    """Return the runs of the study's test, and the study with the number of the others. Without a test, all runs."""
    if study is None:
        return runs, None
    seeds = [run.config.get("seed") for run in runs]
    is_tested = [not isinstance(seed, int) or seed >= study.first_fresh_seed for seed in seeds]
    tested = [run for run, counts in zip(runs, is_tested, strict=True) if counts]
    return (tested, structs.replace(study, num_tuning=len(runs) - len(tested))) if tested else (runs, study)


def limited(verdict: Verdict, study: SweepVerdict | None, metric: str) -> Verdict:
    """Return the verdict, undecided if a study has not decided: its runs ended, or go on, by their results."""
    if study is None or study.metric != metric or study.status == "decided" or verdict.status != "decided":
        return verdict
    text = verdict.sentence.removeprefix("Decided: ")
    sentence = f"Undecided, as the study is. If its number of runs had been chosen beforehand: {text}"
    return replace(verdict, status="undecided", sentence=sentence, winner=None)


_MAX_NAMES = 3
"""At most this many runs or groups are named; more are counted."""

_MAX_VALUES = 5
"""At most this many different values are listed; more are counted."""


def find_warnings(
    runs: Sequence[Run],
    groups: Sequence[Group],
    metric: Metric,
    of_effects: Sequence[str],
    times: Mapping[str, Mapping[str, float]],
) -> list[ComparisonWarning]:
    """Return the warnings about runs and groups.

    Args:
        of_effects: what the effects of a factorial leave out.
        times: to the target, by run and unit.
    """
    warnings = [*_excluded(runs), *_conditions(runs, metric), *_unbalanced(groups, of_effects)]
    if twice := [run for run in runs if run.is_read_twice]:
        text = "given as a folder and from W&B; only the folder is used"
        warnings.append(("runs", f"{_names(twice, runs)}: {text}"))
    lacking = dict[str, list[str]]()
    for group in (group for group in groups if group.missing_repetitions):
        lacking.setdefault(first_few(group.missing_repetitions), []).append(group.name)
    missing = [f"{seeds} in {_counted(names, 'groups')}" for seeds, names in lacking.items()]
    warnings += [("results", f"no run with {_listed(missing, _MAX_NAMES)}")] * bool(missing)
    warnings += [*_ended_by_hooks(runs, metric), *_without_result(runs, metric), *_unknown_times(runs, times)]
    return [ComparisonWarning(about, text) for about, text in warnings]


_Texts = Iterator[tuple[str, str]]
"""What a warning is about, and its text."""


def _conditions(runs: Sequence[Run], metric: Metric) -> _Texts:
    """Yield the conditions in which the runs differ, and whether their code is that of a commit."""
    begun = [run for run in runs if run.summary.get("environment")]
    defining = differing_definitions(metric.name, [run.config for run in begun if metric.has_result(run)])
    conditions: dict[str, Callable[[Run], str]] = {
        "code commit": lambda run: (run.summary["environment"].get("git_commit") or "no commit")[:10],
        "torch version": lambda run: str(run.summary["environment"].get("torch")),
        "device": lambda run: str(run.summary["environment"].get("gpu") or "CPU"),
        "number of ranks": lambda run: str(run.summary["environment"].get("world_size", 1)),
        f"definition of {metric.name}": lambda run: " ".join(f"{key}={label(run, key)}" for key in defining),
        "data": _data(begun),
        "budget": _budget,
    }
    for about, value in conditions.items():
        yield from _differing(about, begun, value)
    chose = [run for run in begun if run.summary.get("orthogonalized_in")]
    yield from _differing("number format of Muon's products", chose, lambda r: r.summary["orthogonalized_in"])
    if dirty := [run for run in begun if run.summary["environment"].get("git_dirty")]:
        yield "code commit", f"uncommitted changes in {_names(dirty, runs)}: the code differs from the commit"


def _unbalanced(groups: Sequence[Group], of_effects: Sequence[str]) -> _Texts:
    """Yield whether results are means over different settings of other keys, or settings are left out."""
    keys = ", ".join(next((group.averaged_over for group in groups), ()))
    if not are_balanced(groups):
        text = f"the groups share no setting of {keys}, so the result of each is its mean over settings of its own"
        remedy = f"--best-over {keys.replace(' ', '')} compares the best of each"
        yield "groups", f"{text}: a difference may be due to these; {remedy}"
    if left_out := list(dict.fromkeys([cell for group in groups for cell in group.left_out] + [*of_effects])):
        named = _counted(left_out, "settings and seeds")
        yield "groups", f"not in the means, which take what all groups and seeds have: {named}"


def _excluded(runs: Sequence[Run]) -> _Texts:
    """Yield which runs are in no group."""
    if num := sum(bool(run.repeats) for run in runs):
        repeat = "run repeats" if num == 1 else "runs repeat"
        yield "repeats", f"{num} {repeat} a job with its seed: only the newest finished run of a job counts"
    if described := [f"{run.name}: {run.error}" for run in runs if run.state == SEVERAL]:
        yield "groups", f"runs that several configs trained are in no group: {_listed(described, _MAX_NAMES)}"


def _ended_by_hooks(runs: Sequence[Run], metric: Metric) -> _Texts:
    """Yield whether results are those where a hook, such as `stop_at`, has ended the run."""
    if ended := [run for run in runs if metric.has_result(run) and run.summary.get("end_reason")]:
        updates = sorted({run.summary.get("num_updates", 0) for run in ended})
        after = " to ".join(f"{num:,}" for num in dict.fromkeys((updates[0], updates[-1])))
        reasons = _listed(sorted({str(run.summary["end_reason"]) for run in ended}), _MAX_VALUES)
        text = f"a hook has ended {_names(ended, runs)} after {after} updates ({reasons})"
        remedy = "the results are those of this moment; --target compares when runs reach a value"
        yield "budget", f"{text}: {remedy}"


def _without_result(runs: Sequence[Run], metric: Metric) -> _Texts:
    by_reason: dict[str, list[Run]] = {}
    for run in runs:
        if not metric.has_result(run) and not run.repeats and run.state != SEVERAL:
            by_reason.setdefault(_reason(run, metric), []).append(run)
    for reason, affected in by_reason.items():
        yield "results", f"{reason}: {_names(affected, runs)}; not included in any mean"


def _reason(run: Run, metric: Metric) -> str:
    """Return why a run has no result."""
    if run.state != RunStatus.FINISHED:
        return run.state
    if metric.name in run.series:
        return f"finished, but its last {metric.name} is not finite"
    return f"finished without {metric.name}"


def _unknown_times(runs: Sequence[Run], times: Mapping[str, Mapping[str, float]]) -> _Texts:
    """Yield the units without an AlgoPerf score, because a run reached the target at an unknown time."""
    timed = [run for run in runs if run.name in times]
    for unit in ranking.UNITS:
        if unknown := [run for run in timed if math.isnan(times[run.name][unit])]:
            text = f"no AlgoPerf score in {unit}, because it is unknown when these runs reached the target"
            yield "target", f"{text}: {_names(unknown, timed)}"


def _differing(about: str, runs: Sequence[Run], value: Callable[[Run], str]) -> _Texts:
    """Yield whether the runs differ in a value: the values, the most frequent first, with their runs."""
    by_value: dict[str, list[Run]] = {}
    for run in runs:
        by_value.setdefault(value(run), []).append(run)
    if len(by_value) > 1:
        (most_frequent, most), *rarer = sorted(by_value.items(), key=lambda item: -len(item[1]))
        values = [f"{most_frequent} ({len(most)} of {len(runs)} runs)"]
        values += [f"{text} ({_names(affected, runs)})" for text, affected in rarer]
        yield about, f"the {about} differs: {_listed(values, _MAX_VALUES)}"


def _listed(texts: Sequence[str], limit: int) -> str:
    """Return at most `limit` texts, and the number of the others."""
    more = [f"and {len(texts) - limit} more"] if len(texts) > limit else []
    return "; ".join([*texts[:limit], *more])


def _counted(names: Sequence[str], noun: str) -> str:
    """Return few names, or how many of the noun there are, with the first one."""
    return "; ".join(names) if len(names) <= _MAX_NAMES else f"{len(names)} {noun}, such as {names[0]}"


def _names(affected: Sequence[Run], runs: Sequence[Run]) -> str:
    """Return the names of the affected runs if they are few and not all runs, else their number."""
    if len(affected) <= _MAX_NAMES and len(affected) < max(len(runs), 2):
        return ", ".join(run.name for run in affected)
    return f"{len(affected)} of {len(runs)} runs"


def _data(runs: Sequence[Run]) -> Callable[[Run], str]:
    """Return a function that describes the data of a run: the keys in which the runs differ, and the files of the same
    name whose contents do."""
    keys = sorted({key for run in runs for key in run.config if is_data_key(key)})
    keys = [key for key in keys if len({label(run, key) for run in runs}) > 1]
    keys = ["data"] if "data" in keys else keys  # this option determines the other keys
    digests = [run.summary.get("data_files") or {} for run in runs]
    splits = sorted({split for of_run in digests for split in of_run if f"data.{split}" not in keys})
    splits = [split for split in splits if len({of_run.get(split) for of_run in digests} - {None}) > 1]
    splits = [] if keys == ["data"] else splits

    def describe(run: Run) -> str:
        files = run.summary.get("data_files") or {}
        contents = [f"content of data.{split} {files.get(split, '?')[:8]}" for split in splits]
        return " ".join([*(f"{key}={label(run, key)}" for key in keys), *contents])

    return describe


def _budget(run: Run) -> str:
    with contextlib.suppress(ConfigError):
        # The machines decide the updates.
        if Duration.parse(run.config.get("duration"), "duration").unit == "s":
            return f"{run.config['duration']} of training"
    total, sizes = run.summary.get("total_updates"), run.batch_sizes
    return "unknown" if total is None or sizes is None else f"{sizes.total(total):,} samples"
