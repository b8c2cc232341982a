"""The verdicts of a comparison: what its results show beyond the means, and what they do not show."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydrant.commands.compare.groups import Group, Metric
from hydrant.commands.compare.question import Question
from hydrant.commands.compare.run import Run
from hydrant.commands.compare.verdicts import tuning as verdict_tuning
from hydrant.commands.compare.verdicts.noise_floor import NoiseFloor, find_noise_floor
from hydrant.commands.compare.verdicts.target import TargetVerdict, judge_target


@dataclass(frozen=True)
class Verdicts:
    """All verdicts; None for one that is not asked for or that the runs cannot give. Each has its `sentences`."""

    noise: NoiseFloor
    against: TargetVerdict | None
    sensitivity: verdict_tuning.Sensitivity | None
    tuning: verdict_tuning.Tuning | None


def find_verdicts(
    runs: Sequence[Run], groups: Sequence[Group], best: Sequence[Group], keys: Sequence[str], metric: Metric,
    repetitions: str, question: Question, *, num_comparisons: int = 1, num_looks: int = 1,
) -> Verdicts:  # fmt: skip
    """Return the verdicts about runs.

    Args:
        best: the winner and the runner-up, or as many as there are.
        num_comparisons: for which a test of the winner by fresh seeds is corrected.
        num_looks: at these seeds; each comparison of theirs counts `num_looks**2` times.

    Raises:
        ConfigError: a question names a key that the runs do not have.
    """
    cells = verdict_tuning.cells_of(runs, keys, metric)
    return Verdicts(
        noise=find_noise_floor(
            groups, best, repetitions, metric.name, question.difference, num_comparisons, num_looks
        ),
        against=judge_target(groups, keys, question, num_looks),
        sensitivity=verdict_tuning.find_sensitivity(cells, metric, question.tolerance),
        tuning=verdict_tuning.find_tuning(cells, metric, question.tuned),
    )
