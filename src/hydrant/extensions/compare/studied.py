"""The study whose runs are compared: its verdict, which holds although it looked after each seed, and its test.

Only the runs of its test are compared. Those of its tuning chose the settings, so they flatter them.
"""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from hydrant.errors import RecordError
from hydrant.extensions.compare.run import Run
from hydrant.extensions.compare.verdict import Verdict
from hydrant.installation import entry_points
from hydrant.records.answers import SweepVerdict
from hydrant.sweeps.plan import usable_plan
from hydrant.terminal.console import notice

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
    return 1 + sum(usable_plan(sweep)[0].num_extensions for sweep in sweeps)


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
