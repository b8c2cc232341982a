"""`hydrant study`, and its sweeper: it tunes its contenders alike, and compares the best of each with fresh seeds."""

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hydrant.commands import train
from hydrant.config import metric_keys
from hydrant.config.command_line import Flags, check_grid
from hydrant.config.compose import grid
from hydrant.config.flat import JobFolders, flatten, register_resolvers
from hydrant.config.groups import option_content
from hydrant.errors import ConfigError, JobFailed
from hydrant.extensions.study import report
from hydrant.extensions.study.protocol import (
    Contender,
    Protocol,
    first_settings,
    key_of,
    name_contenders,
    read_ranges,
    split_contender,
)
from hydrant.extensions.study.records import StudyFile
from hydrant.extensions.study.rounds import FreshSeeds, Tuning
from hydrant.extensions.study.trials import RUNS, BudgetSpent, Trials, read_budget
from hydrant.extensions.study.verdict import Rule
from hydrant.files.plain_values import BetweenZeroAndOne, NotNegativeInt, Positive, PositiveInt
from hydrant.files.redaction import redacted
from hydrant.records import Objective
from hydrant.runs.folder import RunFolder
from hydrant.runs.lock import exclusive
from hydrant.sweeps.executors.base import SweepJob
from hydrant.sweeps.grid import Context, GridSweeper
from hydrant.sweeps.plan import recorded_jobs
from hydrant.sweeps.preflight import is_finished
from hydrant.terminal.console import emit_kept, notice, relative, say, stdout_kept, wants_json
from hydrant.terminal.text import PaperTable, paper_table, shell_line

_KEY = "hydra.sweeper"


class StudySweeper(GridSweeper):
    """Answers which of several settings is best. The same command continues the study.

    conf/hydra/sweeper/study.yaml describes the arguments.
    """

    def __init__(
        self,
        context: Context,
        *,
        params: Any,
        contenders: list[str],
        tune: list[str],
        rounds: NotNegativeInt,
        budget: str | None,
        judge: str | None,
        min_difference: Positive | None,
        first_seed: NotNegativeInt,
        alpha: BetweenZeroAndOne,
        power: BetweenZeroAndOne,
        seeds: PositiveInt,
        seeds_at_once: PositiveInt,
        table: PaperTable | None,
    ) -> None:
        super().__init__(context, params=params)
        self._paper_table: PaperTable | None = table
        self._contenders, self._tune = contenders, tune
        self._counts = dict(rounds=rounds, first_seed=first_seed, seeds=seeds, seeds_at_once=seeds_at_once)
        self._of_rule: dict[str, Any] = {"min_difference": min_difference, "alpha": alpha, "power": power}
        self._flags: dict[str, Any] = {"budget": budget, "judge": judge, **self._of_rule, **self._counts}
        self._defaults = option_content("hydra/sweeper", "study")

    def run(self) -> None:
        """Check the study, and run what is left of it.

        Raises:
            ConfigError: it cannot run, so nothing has started.
            JobFailed: no run has a result, or several configs have trained one.
            Stopped: a signal arrived.
        """
        protocol, first_jobs = self._protocol()
        self._check_first_jobs(protocol, first_jobs)
        self.sweep.rules.may_fail = True  # a contender may diverge
        self.sweep.rules.has_best = False  # the test decides
        with exclusive(self.folder), self.sweep.active({}):
            earlier = report.read_earlier(self.folder)
            report.check_same_protocol(self.folder, earlier, protocol.to_json())
            self.sweep.files.write_config(self.config)
            say(f"{relative(self.folder)}: {protocol.question}")
            for line in [] if wants_json() else protocol.sentences():
                say(line)
            needed = earlier.verdict.seeds_needed if earlier else None
            for warning in protocol.warnings(needed):
                notice(f"warning: {warning}")
            record, content = self._study(protocol, earlier)
        if self._paper_table is not None and not wants_json():
            rows, caption = report.results_table(content), report.table_caption(content)
            caption = f"{caption} {content['verdict']['sentence']}"
            emit_kept(paper_table(self._paper_table, rows, caption))
            self.sweep.answer.lines += [caption] * (self._paper_table == "csv")
        self.sweep.answer.lines += [] if wants_json() else report.closing_lines(content, self.folder)
        if not record.has_results and record.fresh.verdict().ended_by != "budget":
            raise JobFailed(self._failure or "no run has a result")

    def _study(self, protocol: Protocol, earlier: StudyFile | None) -> tuple[report.Report, dict[str, Any]]:
        """Run what is left of a study, and keep study.json up to date. Return its content, too."""
        self._failure = ""
        trials = Trials(
            self.folder,
            protocol.budget,
            (self.executor.num_jobs or 1) * (self.executor.max_jobs or 1),
            self._compose_or_none,
            self._train,
            report.used_before(self.folder, earlier),
            seconds=lambda: (self.sweep.files.wall_seconds, self.sweep.files.processor_seconds),
            before_first=lambda: earlier and report.continue_record(self.folder, record, earlier),
            before_round=lambda num: say(record.progress(num)),
            after_batch=lambda: report.write_record(self.folder, record, is_running=True),
        )
        tuning = Tuning(protocol, trials)
        fresh = FreshSeeds(protocol, trials, tuning)
        num_starts = earlier.cost.num_starts if earlier else 0
        record = report.Report(protocol, trials, tuning, fresh, num_starts, self._command)
        if earlier is None:
            report.write_record(self.folder, record, is_running=True)
        try:
            tuning.run()
            if protocol.keys and (opening := fresh.opening()):
                say(opening)
            fresh.run()
        except BudgetSpent:
            fresh.why_ended = "budget"
        finally:
            content = report.write_record(self.folder, record, is_running=False)
            self.sweep.answer.result = record.result(self.folder, content)  # also of one that a signal stops
        return record, content

    def _command(self, **changes: Any) -> str:
        """Return the command of this study with these arguments changed, without flags that have their default."""
        flags = [word for text in self._contenders for word in ("--contender", text)]
        flags += [word for text in self._tune for word in ("--tune", text)]
        for key, value in (self._flags | changes).items():
            flags += [f"--{key.replace('_', '-')}", f"{value}"] if value != self._defaults[key] else []
        hydra_words: Any = OmegaConf.to_container(self.config.hydra.overrides.hydra)
        left_out = ("hydra/sweeper", "hydra.sweeper", "hydra.mode")
        kept = [word for word in hydra_words if not word.startswith(left_out)]
        words: Any = OmegaConf.to_container(self.config.hydra.overrides.task)
        params = [f"{key}={value}" for key, value in self._params.items()]
        if "sweep" in map(key_of, words) and not any(".params." in word for word in hydra_words):
            params = []  # those of the file
        return shell_line(redacted(["hydrant", "study", *params, *words, *kept, *flags]))

    def _train(self, jobs: Sequence[SweepJob], number: int) -> None:
        """Train jobs. A failed one has no result."""
        failure = self._run_batch(jobs, number)
        self._failure = self._failure or failure

    def _compose_or_none(self, words: Sequence[str]) -> SweepJob | None:
        """Return a job; None if no config has these values, such as a dropout of 2."""
        jobs, faults = self._compose_all([words])
        if faults:
            say(f"{' '.join(words)}: {faults[0][0]}")
        return jobs[0] if jobs else None

    def _protocol(self) -> tuple[Protocol, list[SweepJob]]:
        """Return what the study does, and its first jobs.

        Raises:
            ConfigError: it names no contenders, or a key twice, or can decide nothing.
        """
        overrides = self._overrides()
        check_grid(overrides)
        common, products = _divide(overrides)
        named = [split_contender(text) for text in self._contenders or [""]]
        contenders = [[*fixed, *words] for _, fixed in named for words in products]
        names = name_contenders(contenders, [name for name, _ in named for _ in products])
        if len(set(names)) < max(len(names), 2):
            needs = "two contenders or more, each with a name of its own"
            remedy = "give optimizer=adamw,sgd, or --contender twice"
            raise ConfigError(f"{_KEY}.contenders", needs=needs, got=names, remedy=remedy)
        swept = [*(key_of(word) for words in (*contenders, self._tune) for word in words), "seed"]
        register_resolvers(JobFolders([*dict.fromkeys(swept)], recorded_jobs(self.folder)))
        parts = [self._contender(*named, common) for named in zip(names, contenders, strict=True)]
        first = [self._compose_first(common, one) for one in parts]
        rule, choice = self._rule(parts, [jobs[0].config for jobs in first])
        protocol = Protocol(
            parts, common, rule, choice, **self._counts, budget=read_budget(self._flags["budget"])
        )
        of_budget = protocol.budget.limits.get(RUNS, protocol.least_runs)
        for key, num, least in (
            ("budget", of_budget, protocol.least_runs),
            ("seeds", protocol.seeds, protocol.least_seeds),
        ):
            if num < least:
                few = f"{num:g} can decide nothing at an alpha of {rule.alpha:g}"
                raise ConfigError(f"{_KEY}.{key}", few, remedy=f"give {least} or more")
        return protocol, [job for jobs in first for job in jobs]

    def _contender(self, name: str, words: Sequence[str], common: Sequence[str]) -> Contender:
        """Return a contender with its ranges, none of whose keys is among its overrides, nor those of all."""
        ranges = read_ranges(self._tune, [*common, *words], self._composer)
        chosen = ["seed", *(r.key for r in ranges)]
        keys = [key_of(word) for word in (*common, *words)] + chosen
        if twice := [key for key in keys if keys.count(key) > 1]:
            remedy = "a study chooses the seeds, and the values of what it tunes" * (twice[0] in chosen)
            raise ConfigError(twice[0], f"is given twice for the contender {name}", remedy=remedy)
        return Contender(name, words, ranges)

    def _rule(
        self, contenders: Sequence[Contender], configs: Sequence[Mapping[str, Any]]
    ) -> tuple[Rule, Objective]:
        """Return the rule of the test, and by what the tuning chooses.

        Both are the metric of the best checkpoints, by its last value as in `hydrant compare`; `judge` replaces that of
        the test.

        Args:
            contenders: those of the study.
            configs: the first config of each.

        Raises:
            ConfigError: contenders are the same config, or nothing says what is better.
        """
        for one, config in zip(contenders, configs, strict=True):
            if configs.count(config) > 1:
                raise ConfigError(f"{_KEY}.contenders", f"{one.name} is the same config as another contender")
        best, asked = configs[0]["best"], self._flags["judge"]
        differ = any(config["averaging"] != configs[0]["averaging"] for config in configs)
        if differ and "best.metric" not in {o.get_key_element() for o in self._overrides()}:
            best = dict[str, Any](best, metric=re.sub("^val/", "val_ema/", best["metric"]))  # as in `compare`
        judge = best
        if asked not in (None, best["metric"]):
            metric = asked.removesuffix(":max").removesuffix(":min")
            is_alike = metric.partition("/")[2] == best["metric"].partition("/")[2]  # maybe of another split
            mode = asked[len(metric) + 1 :] or (best["mode"] if is_alike else "auto")
            judge = metric_keys.resolve_best({**configs[0], "best": {"metric": metric, "mode": mode}})
        for key, one in (("best.mode", best), (f"{_KEY}.judge", judge)):
            if one["mode"] == "auto":
                name = "" if one is best else f"{one['metric']}:"
                raise metric_keys.unknown_mode(key, one["metric"], f"give {name}max or {name}min")
            for config in configs:
                metric_keys.check_logged(one["metric"], config)
        _check_one_quantity(contenders, configs, best["metric"], judge["metric"])
        rule = Rule(judge["metric"], judge["mode"], num_contenders=len(contenders), **self._of_rule)
        return rule, Objective(best["metric"], best["mode"])

    def _compose_first(self, common: Sequence[str], one: Contender) -> list[SweepJob]:
        """Return the jobs of the settings that are tried first."""
        settings = [
            [f"{r.key}={value}" for r, value in zip(one.ranges, setting, strict=True)]
            for setting in first_settings(one.ranges)
        ]
        seed = f"seed={self._counts['first_seed']}"
        jobs, faults = self._compose_all([[*common, *one.words, *setting, seed] for setting in settings])
        _refuse_first(faults)
        return jobs

    def _check_first_jobs(self, protocol: Protocol, jobs: Sequence[SweepJob]) -> None:
        """Raise ConfigError if a job of the first batch cannot run on this machine."""
        unfinished = [job for job in jobs if not is_finished(job.config, RunFolder(job.folder))]
        _refuse_first(self._find_faults(unfinished))
        if unfinished and protocol.rule.metric != protocol.choice.metric:
            self._check_judge(jobs[0], protocol.rule)

    def _check_judge(self, job: SweepJob, rule: Rule) -> None:
        """Raise ConfigError if no run will have the metric that judges. A test gives what a validation gives."""
        split, _, name = rule.metric.partition("/")
        if self.executor.is_remote or split not in ("val", "val_ema", "test", "test_ema"):
            return
        best = {"metric": f"{split.replace('test', 'val')}/{name}", "mode": rule.mode}
        [error] = self.executor.check([{**job.config, "best": best}])
        if error is not None and error.key == "best.metric":
            message = f"no run would have {rule.metric}: {error.reason}"
            raise ConfigError(f"{_KEY}.judge", message, remedy=error.remedy)


def _refuse_first(faults: Sequence[tuple[ConfigError, Sequence[str]]]) -> None:
    for error, words in faults:
        raise error.at(error.key, f" [job: {' '.join(words)}]")


def _check_one_quantity(
    contenders: Sequence[Contender], configs: Sequence[Any], tuned_by: str, judge: str
) -> None:
    """Raise ConfigError if a loss chooses between configs whose losses are different quantities."""
    flat = [flatten(config) for config in configs]
    tuned = [r.key for one in contenders for r in one.ranges if len(r.values) > 1]
    for metric, keys in ((judge, metric_keys.differing_definitions(judge, flat)), (tuned_by, [])):
        if not (keys := [*keys, *(key for key in tuned if metric_keys.defines(key, metric))]):
            continue
        key, flag = ("best.metric", "--metric") if metric == tuned_by else (f"{_KEY}.judge", "--judge")
        message = f"{metric} is another quantity with each {keys[0]}, so it cannot say which is better"
        remedy = f"give {flag} with what all of them measure, such as val/accuracy or val/r2"
        raise ConfigError(key, message, remedy=remedy)


def _divide(overrides: Sequence[Override]) -> tuple[list[str], list[list[str]]]:
    """Return the overrides with one value, and every combination of the others. The last of each key counts."""
    last = {override.get_key_element().lstrip("+~"): override for override in overrides}
    single = [override for override in last.values() if not override.is_sweep_override()]
    several = [override for override in last.values() if override.is_sweep_override()]
    return [str(override.input_line) for override in single], grid(several)


_NO_FLAGS = ("_target_", "params", "contenders", "tune")
"""The keys of a study that are no flag with one value."""


def main(arguments: Sequence[str]) -> int:
    """Run or continue a study. Return the exit status.

    Raises:
        ConfigError: the command line is wrong.
    """
    own_keys = option_content("hydra/sweeper", "study").keys() - {*_NO_FLAGS}
    parser = Flags("study", metric=str, **dict.fromkeys(sorted(own_keys), str))
    parser.add_argument("--contender", action="append", dest="contenders")
    parser.add_argument("--tune", action="append")
    options, words = parser.split(arguments)
    values = {key: value for key, value in vars(options).items() if value is not None and key != "json"}
    keys = {"metric": "best.metric"}
    settings = [f"{keys.get(key, f'hydra.sweeper.{key}')}={_written(value)}" for key, value in values.items()]
    with stdout_kept() if options.table and not wants_json() else nullcontext():
        return train.main(["--multirun", "hydra/sweeper=study", *settings, *words])


def _written(value: Any) -> str:
    """Return a value of an override.

    >>> print(_written("optimizer=sgd notes='a'"), _written(["optimizer.lr", "b=1"]), _written(3))
    'optimizer=sgd notes=\\'a\\'' [optimizer.lr,'b=1'] 3
    """
    if isinstance(value, list):
        return f"[{','.join(_written(item) for item in cast('list[Any]', value))}]"
    if not isinstance(value, str) or re.fullmatch(r"[\w./-]+", value):
        return str(value)
    return "'" + value.replace("'", "\\'") + "'"
