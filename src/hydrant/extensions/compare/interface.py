"""`hydrant.load_runs` and `hydrant.compare`: many runs as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydrant.extensions.compare import comparison
from hydrant.extensions.compare.groups import Metric
from hydrant.extensions.compare.run import Run as RunData
from hydrant.extensions.compare.serialize import to_dict, to_text
from hydrant.extensions.compare.sources import Question, read_runs, read_runs_by_path
from hydrant.extensions.compare.verdict import Verdict
from hydrant.interface import Run, data_frame, known_arguments

if TYPE_CHECKING:
    import pandas as pd


class Comparison:
    """The result of `compare`. Printing it shows what the command `hydrant compare` prints."""

    def __init__(self, result: comparison.Comparison) -> None:
        self._result = result

    def __str__(self) -> str:

        return to_text(self._result, None)

    __repr__ = __str__

    @property
    def verdict(self) -> Verdict:
        """Whether one group is better than all others: its `status` (`decided`, `undecided`, `one_setting` or
        `no_runs`), the `winner` (None unless it is decided) and the `sentence` that the command prints first.
        """
        return self._result.verdict

    @property
    def winner(self) -> str | None:
        """The name of the group with the best mean, such as `optimizer=adamw`; None without results. It may lead by
        chance: see `verdict`.
        """
        return self.to_dict()["winner"]

    @property
    def warnings(self) -> list[str]:
        """What makes the comparison unfair, in words."""
        return [f"{warning.about}: {warning.text}" for warning in self._result.warnings]

    @property
    def verdicts(self) -> dict[str, list[str]]:
        """Sentences about what the results show and what they do not show, by verdict: `noise`; also `against`,
        `sensitivity` and `tuning` if they are asked for or the runs allow them. `to_dict` has the numbers.
        """
        verdicts = self.to_dict()["verdicts"]
        return {name: verdict["sentences"] for name, verdict in verdicts.items() if verdict is not None}

    @property
    def groups(self) -> pd.DataFrame:
        """A row for each group: its keys, `num` seeds with a result, `num_runs`, `mean`, the 95 % interval of the mean
        from `low` to `high`, `std` over the seeds with its interval from `std_low` to `std_high`, `median`; and
        `difference`, `difference_low`, `difference_high`, `p` and `p_holm` from the baseline. The index is the name of
        the group.

        Raises:
            ConfigError: pandas is not installed.
        """
        rows: list[dict[str, Any]] = []
        for group in self.to_dict()["groups"]:
            counts, versus = {key: group[key] for key in ("num", "num_runs")}, group["versus"] or {}
            figures = {key: group[key] for key in _FIGURES}
            figures |= {name: versus.get(key) for key, name in _DIFFERENCES.items()}
            floats = {name: float("nan") if value is None else value for name, value in figures.items()}
            rows.append({"group": group["name"], **group["labels"], **counts, **floats})
        return data_frame(rows).set_index("group")

    @property
    def effects(self) -> pd.DataFrame:
        """What each key of a sweep over several keys changes: a row for each value beside the `best` one of its `key`,
        with the `mean` of the best minus the `other`, the corrected interval from `low` to `high`, `p`, `p_holm` and
        `is_decided`. Empty for other sweeps, and where `by` is given. `to_dict` has the interactions.

        Raises:
            ConfigError: pandas is not installed.
        """
        return data_frame((self.to_dict()["factorial"] or {"effects": []})["effects"])

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the curves in plain types: what `hydrant compare --json --details` prints."""
        return to_dict(self._result)

    def write_page(self, path: str | Path) -> None:
        """Write the page of `hydrant compare --html` to a file."""
        from hydrant.extensions.compare.command import write_page  # imports Hydra

        write_page(self._result, Path(path))


_FIGURES = ("mean", "low", "high", "std", "std_low", "std_high", "median")
"""The columns of `Comparison.groups` about the results."""

_DIFFERENCES = dict(mean="difference", low="difference_low", high="difference_high", p="p", p_holm="p_holm")
"""The columns of `Comparison.groups` about the difference from the baseline, by their names in `to_dict`."""


@known_arguments
def compare(
    *runs: str | Path | Run,
    by: Sequence[str] | None = None,
    best_over: Sequence[str] | None = None,
    metric: str | None = None,
    mode: Literal["max", "min"] | None = None,
    baseline: str | None = None,
    target: str | None = None,
    against: str | None = None,
    sigma: float | None = None,
    critical: float | None = None,
    difference: float | None = None,
    tolerance: float | None = None,
    tuned: Sequence[str] | None = None,
) -> Comparison:
    """Compare runs as the command `hydrant compare` does, with the same numbers.

    Args:
        runs: runs, run folders, folders of sweeps, globs, or `wandb:entity/project`.
        by: the keys that form the groups; by default all that differ, except the seed and the fold.
        best_over: the keys whose best values each group takes, chosen by validation: `["optimizer.lr"]`.
        metric: what to compare; by default the metric of the best checkpoints.
        mode: whether more (`max`) or less (`min`) of the metric is better; by default as known, or by its name.
        baseline: the group from which differences are taken, such as `optimizer=sgd`; by default the winner.
        target: also measure the time until a value is reached: `val/accuracy>=0.95`.
        against: test which groups reach a value on average: `val/loss<=3.28`.
        sigma: the standard deviation of a run, if it is known; this test is then a z-test.
        critical: what `margin * sqrt(n)` must reach in this test, instead of a level of 5 %.
        difference: also say how many seeds a true difference of this size needs.
        tolerance: by how much a result in the basin of a learning rate may be worse than the best; default: the noise.
        tuned: the keys whose values are trials; by default those of optimizers and schedules.

    Raises:
        ConfigError: no runs, an unknown name, an impossible number, or a text where a list of texts is needed.
    """
    question = Question(
        by=by, best_over=best_over, metric=metric, mode=mode, baseline=baseline, target=target, against=against,
        sigma=sigma, critical=critical, difference=difference, tolerance=tolerance, tuned=tuned,
    )  # fmt: skip
    return Comparison(comparison.compare(read_runs(_words(runs), question.varied), question))


@known_arguments
def load_runs(*runs: str | Path | Run) -> pd.DataFrame:
    """Return a table of runs: a row for each, also for jobs of a sweep that never started.

    The index is the run folder. The columns are the overrides, by key and with the values of the config; `status`,
    `num_updates`, the last value of each metric, and the `best` value of the metric that decides the best checkpoint.

    Args:
        runs: as in `compare`.

    Raises:
        ConfigError: there are no runs; or pandas is not installed.
    """
    return data_frame([_row(run) for run in read_runs_by_path(_words(runs))]).set_index("run")


def _row(run: RunData) -> dict[str, Any]:
    overrides = {key: run.config.get(key, text) for key, text in run.overrides.items() if key != "name"}
    progress = {"status": str(run.state), "num_updates": run.summary.get("num_updates")}
    last = {metric: float(series.values[-1]) for metric, series in run.series.items()}
    best = Metric(str(run.config.get("best.metric")), str(run.config.get("best.mode")))
    return {"run": run.name, **overrides, **progress, **last, f"best {best.name}": best.best_of(run)}


def _words(runs: Sequence[str | Path | Run]) -> list[str]:
    return [str(run.folder if isinstance(run, Run) else run) for run in runs]
