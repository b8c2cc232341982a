"""Configurations and their lines, for the pictures of learning rates and tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydrant.commands.compare.groups import NOT_FINITE, Group, Metric, group_runs, name_of
from hydrant.commands.compare.run import Run
from hydrant.config.schema import REPETITIONS
from hydrant.runs.folder import RunStatus


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
