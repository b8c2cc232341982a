"""The sweeper of a race: it adds pairs of runs with the same seed until the verdict is clear or the budget is spent."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from hydrant.config.best import unknown_mode
from hydrant.config.flat import redacted_yaml
from hydrant.config.job_folders import JobFolders
from hydrant.config.resolvers import register_resolvers
from hydrant.errors import ConfigError, JobFailed
from hydrant.files.atomic_write import replace_file, write_json
from hydrant.files.plain_values import check_value
from hydrant.runs.folder import SWEEP_CONFIG, RunFolder, RunStatus, read_metrics
from hydrant.runs.lock import exclusive
from hydrant.sweeps.grid import ComposedJob, Context, GridSweeper, recorded_jobs
from hydrant.sweeps.preflight import is_finished
from hydrant.sweeps.race.verdict import Rule, Verdict, judge, sentences
from hydrant.terminal.console import relative, say

RESULT = "race.json"

_KEY = "hydra.sweeper"

_Pair = tuple[ComposedJob, ComposedJob]


class RaceSweeper(GridSweeper):
    """Trains two settings with the same seeds until one is better. The same command continues the race.

    conf/hydra/sweeper/race.yaml describes the arguments.
    """

    def __init__(
        self, context: Context, *, params: Any, a: str, b: str, alpha: float, negligible: float | None, first_seed: int,
        max_seeds: int, seeds_at_once: int, max_seconds: float | None,
    ) -> None:  # fmt: skip
        super().__init__(context, params=params)
        self._settings = {"a": _overrides("a", a), "b": _overrides("b", b)}
        self._alpha, self._negligible, self._max_seconds = alpha, negligible, max_seconds
        self._first_seed, self._max_seeds, self._seeds_at_once = first_seed, max_seeds, seeds_at_once

    def run(self) -> None:
        self._check_limits()
        began, folder = time.monotonic(), self.folder
        pairs = self._compose_pairs(folder, self._common(self._overrides()))
        rule = self._rule(pairs[0])
        jobs = [job for pair in pairs for job in pair]
        if faults := self._find_faults([job for job in jobs if not is_finished(job.config, job.folder)]):
            raise faults[0][0]
        num_done = sum(all(is_finished(job.config, job.folder) for job in pair) for pair in pairs)
        say(f"{relative(folder)}: {num_done} of at most {len(pairs)} pairs are finished")
        self.sweep.print_stacks({job.folder: number for number, job in enumerate(jobs)})
        with exclusive(folder), self.sweep.active(folder, {}):
            replace_file(folder / SWEEP_CONFIG, redacted_yaml(self.config))
            verdict = self._run_pairs(folder, pairs, rule, began)
        self.sweep.result = {"winner": verdict.winner, "decided_at": verdict.decided_at}
        names = {name: ",".join(words) for name, words in self._settings.items()}
        self.sweep.closing_lines += sentences(verdict, rule, names)

    def _run_pairs(self, folder: Path, pairs: Sequence[_Pair], rule: Rule, began: float) -> Verdict:
        """Run pairs until the race ends.

        Raises:
            JobFailed: a run failed or has no finite metric.
            Stopped: a signal arrived.
        """
        results = list[tuple[float, float]]()
        verdict = judge(results, rule)
        while len(results) < len(pairs) and verdict.winner is None:
            if self._max_seconds is not None and time.monotonic() - began >= self._max_seconds:
                break
            begun = len(results)
            batch = pairs[begun : begun + self._seeds_at_once]
            self._train(batch, 2 * begun)
            results += [(_last(a, rule.metric), _last(b, rule.metric)) for a, b in batch]
            verdict = judge(results, rule)
            record = {"settings": self._settings, "rule": vars(rule), "pairs": results, **verdict.to_dict()}
            write_json(folder / RESULT, record)
        return verdict

    def _train(self, batch: Sequence[_Pair], number: int) -> None:
        """Train the runs of pairs that are not finished."""
        if failure := self._run_batch([job for pair in batch for job in pair], number):
            message = "no verdict: a run has failed, and leaving its seed out would favour its setting"
            self.sweep.closing_lines.append(message)
            raise JobFailed(failure)

    def _common(self, overrides: Sequence[Override]) -> list[str]:
        """Return the overrides that both settings share.

        Raises:
            ConfigError: they have several values, the seed, or a key of one of the settings.
        """
        own = {_key(word) for words in self._settings.values() for word in words}
        common = list[str]()
        for override in overrides:
            key = override.get_key_element().lstrip("+~")
            if override.is_sweep_override():
                raise ConfigError(
                    key, "a race has one value of each key; name its two settings A and B instead"
                )
            if key == "seed":
                raise ConfigError(key, f"a race chooses the seeds itself, from {_KEY}.first_seed on")
            if key in own:
                raise ConfigError(key, "is in A or B, so it cannot be an override of both")
            common.append(str(override.input_line))
        return common

    def _compose_pairs(self, folder: Path, common: Sequence[str]) -> list[_Pair]:
        """Return the runs of each seed.

        Raises:
            ConfigError: one of them cannot run.
        """
        keys = [_key(word) for words in self._settings.values() for word in words]
        register_resolvers(JobFolders([*keys, "seed"], recorded_jobs(folder)))
        words = [
            [*common, *setting, f"seed={seed}"]
            for seed in range(self._first_seed, self._first_seed + self._max_seeds)
            for setting in self._settings.values()
        ]
        jobs, faults = self._compose_all(words)
        if faults:
            raise faults[0][0]
        pairs = list(zip(jobs[::2], jobs[1::2], strict=True))
        if pairs[0][0].config == pairs[0][1].config:
            raise ConfigError(f"{_KEY}.b", "is the same config as A; a race needs two")
        return pairs

    def _rule(self, pair: _Pair) -> Rule:
        """Return the rule of the race: the metric of the best checkpoints, by its last value as in `hydrant compare`.

        Raises:
            ConfigError: the settings disagree about it, or nothing says what is better.
        """
        best, other = (job.config["best"] for job in pair)
        if best != other:
            message = (
                f"is {best['metric']} in A and {other['metric']} in B; give both best.metric and best.mode"
            )
            raise ConfigError("best.metric", message)
        if best["mode"] == "auto":
            raise unknown_mode("best.mode", best["metric"])
        return Rule(best["metric"], best["mode"], self._alpha, self._negligible)

    def _check_limits(self) -> None:
        """Raise ConfigError for a limit that is not possible."""
        numbers = (
            ("first_seed", self._first_seed, 0),
            ("max_seeds", self._max_seeds, 1),
            ("seeds_at_once", self._seeds_at_once, 1),
        )
        for name, value, least in numbers:
            check_value(f"{_KEY}.{name}", int, value)
            if value < least:
                raise ConfigError(f"{_KEY}.{name}", f"needs {least} or more, not {value}")
        for name, value in (("negligible", self._negligible), ("max_seconds", self._max_seconds)):
            check_value(f"{_KEY}.{name}", float | None, value)
            if value is not None and not value > 0:
                raise ConfigError(f"{_KEY}.{name}", f"needs a number above 0, or null, not {value:g}")
        check_value(f"{_KEY}.alpha", float, self._alpha)
        if not 0 < self._alpha < 1:
            raise ConfigError(f"{_KEY}.alpha", f"needs a probability between 0 and 1, not {self._alpha:g}")
        if self._settings["a"] == self._settings["b"]:
            raise ConfigError(f"{_KEY}.b", "is the same setting as A; a race needs two")


def _overrides(name: str, text: str) -> list[str]:
    """Return the overrides of a setting such as `optimizer=sgd,optimizer.lr=0.1`.

    Raises:
        ConfigError: it is no list of overrides.
    """
    words = re.split(r",(?=[\w@./+~]+=)", str(text))
    for word in words:
        if not _key(word) or "=" not in word:
            raise ConfigError(
                f"{_KEY}.{name}", f"{word!r} is no override; write optimizer=sgd,optimizer.lr=0.1"
            )
        if _key(word) in ("seed", "name"):
            raise ConfigError(
                f"{_KEY}.{name}", f"{word!r} is not allowed: both settings have the same {_key(word)}"
            )
    return words


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _last(job: ComposedJob, metric: str) -> float:
    """Return the last value of a metric in a finished run.

    Raises:
        JobFailed: there is none, it is not finite, or other configs have trained the run too.
    """
    if RunFolder(job.folder).status == RunStatus.STOPPED:
        raise JobFailed(f"{job.folder.name} was stopped by hooks.stop_if, so the race has no verdict")
    if RunFolder(job.folder).recorded.get("stretches"):
        message = (
            f"several configs trained {job.folder.name}, as its summary.json says, so the race has no verdict"
        )
        raise JobFailed(message)
    values = [row[metric] for row in read_metrics(job.folder) if metric in row]
    if not values or values[-1] is None or not math.isfinite(values[-1]):
        raise JobFailed(f"{job.folder.name} ended without a finite {metric}, so the race has no verdict")
    return float(values[-1])
