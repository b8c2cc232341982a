"""study.json: what a study asked, did and answered; and study.md, the same as a page, with study.png."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from hydrant.config.flat import flatten, unasked_differences
from hydrant.config.metric_keys import bounds_of
from hydrant.errors import ConfigError, first_few, shown
from hydrant.extensions.study.protocol import FIXED, Protocol, first_settings, key_of
from hydrant.extensions.study.records import StudyFile
from hydrant.extensions.study.rounds import FreshSeeds, Tuned, Tuning
from hydrant.extensions.study.trials import CPU, RESULT, RUNS, UPDATES, WALL, Budget, Trials, read_study
from hydrant.extensions.study.verdict import Standing, estimate, spread
from hydrant.files.on_disk import replace_file, write_json
from hydrant.installation import tell_listeners
from hydrant.runs.folder import runs_of_sweep
from hydrant.terminal import text
from hydrant.terminal.console import relative

REPORT = "study.md"

PICTURE = "study.png"

VERSION = 1
"""Of study.json. Within a version, keys are only added."""


def read_earlier(folder: Path) -> StudyFile | None:
    """Return what earlier starts of a study recorded; None if there is none.

    Raises:
        RecordError: it is damaged.
    """
    remedy = (
        "; restore it from a copy, or remove it, and the study continues from its runs. Then nothing checks its "
        "protocol (repeat its command exactly, else alpha does not hold), and the seconds that it has used are lost"
    )
    return read_study(folder, remedy)


def used_before(folder: Path, earlier: StudyFile | None) -> dict[str, float]:
    """Return the seconds that earlier starts have used. If the last one was killed, its runs show how long it lived."""
    if earlier is None:
        return {}
    cost = earlier.cost
    lost = [run.record_time - cost.as_of for run in runs_of_sweep(folder)] if earlier.is_running else []
    return {WALL: cost.wall_seconds + max([0.0, *lost]), CPU: cost.cpu_seconds}


def check_same_protocol(folder: Path, earlier: StudyFile | None, fixed: Mapping[str, Any]) -> None:
    """Raise ConfigError if the study in a folder has another protocol: its error would no longer be what it says.

    The name of a contender may change, as it changes no run.
    """
    recorded: dict[str, Any] = {} if earlier is None else to_builtins(earlier.protocol)
    ours, theirs = _without_names(fixed), _without_names(recorded)
    for key in FIXED if recorded else ():
        if theirs.get(key) != ours[key]:
            difference = f"{key} is {shown(recorded.get(key))} in {folder / RESULT}, not {shown(fixed[key])}"
            remedy = "a study keeps its protocol, except for budget and seeds; give another name=..."
            raise ConfigError("name", difference, remedy=remedy)


def _without_names(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a protocol with the overrides of each contender in place of its name."""
    words = {name: str(overrides) for name, overrides in fixed.get("contenders", {}).items()}
    tuning = {words.get(name, name): ranges for name, ranges in fixed.get("tuning", {}).items()}
    return {**fixed, "contenders": sorted(words.values()), "tuning": tuning}


@dataclass(frozen=True)
class Report:
    """A study with its results so far."""

    protocol: Protocol
    trials: Trials
    tuning: Tuning
    fresh: FreshSeeds
    num_starts: int  # before this one
    command: Callable[..., str]  # that started it, with changes

    @property
    def has_results(self) -> bool:
        """Whether any contender has a result."""
        tuned = [one.results.values() for one in self.tuning.contenders]
        return any(x is not None for values in (*tuned, *self.fresh.results.values()) for x in values)

    def progress(self, num_next: int) -> str:
        """Return how far the study is before a round of so many runs."""
        budget, used = self.protocol.budget, self.trials.used()[RUNS]
        most = min(budget.limits.get(RUNS, self.protocol.all_runs), self.protocol.all_runs)
        so_far = f" {self.fresh.verdict().sentence}" * (self.fresh.standing().num_seeds > 0)
        return f"{used} of at most {most:g} runs have begun; the next round has {num_next}.{so_far}"

    def result(self, folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer for `--json`: what a reader of study.json needs first."""
        standing, verdict = self.fresh.standing(), self.fresh.verdict()
        fields = ("name", "best", "extended", "at_end", "num_seeds", "mean", "low", "high", "state")
        protocol, cost = content["protocol"], content["cost"]
        digits = max(result_digits(content), 6)
        of_pairs = 1 - protocol["pair_alpha"]
        leads = [c.seen_from(verdict.leader) for c in standing.comparisons if verdict.leader in c.names]
        return {
            "verdict": {key: value for key, value in content["verdict"].items() if key != "lead"},
            "contenders": [_short({key: r[key] for key in fields}, digits) for r in by_rank(content)],
            "leads": [{"over": lead.names[1], **_short(to_builtins(lead.estimate))} for lead in leads],
            "beaten": [
                {"name": v.names[1], "by": v.names[0], **_short(to_builtins(v.estimate))}
                for v in standing.victories()
            ],
            "levels": _short({"contenders": 1 - protocol["alpha"], "leads": of_pairs, "beaten": of_pairs}),
            "num_samples": content["num_samples"],
            "tuning": self.tuning.table(),
            "protocol": protocol["sentences"],
            "cost": _short({key: cost[key] for key in (RUNS, UPDATES, WALL, CPU)}),
            "budget": protocol["budget"],
            "left": _short({name: max(most - cost[name], 0.0) for name, most in protocol["budget"].items()}),
            "not_tried": content["not_tried"],
            "report": f"{relative(folder)}/{REPORT}",
            "record": f"{relative(folder)}/{RESULT}",
            "repeat": content["commands"][0],
            "continue": content["continue"],
        }

    def continuing(self) -> str | None:
        """Return the command that continues an undecided study until it may decide; None if no run would tell."""
        verdict, standing, protocol = self.fresh.verdict(), self.fresh.standing(), self.protocol
        if verdict.status != "undecided" or verdict.ended_by == "failures":
            return None
        if verdict.ended_by is None:  # a signal stopped it
            return self.command()
        if standing.num_seeds:
            least = protocol.least_seeds if standing.num_seeds < protocol.least_seeds else None
            if (seeds := verdict.seeds_needed or least) is None:
                return None
            num = len(standing.active) * (seeds - standing.num_seeds)
        else:
            seeds, num = protocol.seeds, protocol.most_runs - int(self.trials.used()["runs"])
        budget = self.trials.budget_for(num)
        changes = {"budget": budget.words()} if budget != protocol.budget else {}
        return self.command(**changes, **({"seeds": seeds} if seeds > protocol.seeds else {}))

    def cost(self) -> dict[str, float]:
        """Return what the study has used until now."""
        num_starts = self.num_starts + self.trials.is_counted
        return {**self.trials.used(), "num_starts": num_starts, "as_of": time.time()}

    def to_json(self, folder: Path, *, is_running: bool) -> dict[str, Any]:
        """Return the content of study.json."""
        standing, verdict = self.fresh.standing(), self.fresh.verdict()
        contenders = [self._contender(tuned, standing) for tuned in self.tuning.contenders]
        return {
            "version": VERSION,
            "question": self.protocol.question,
            "is_running": is_running,
            "verdict": to_builtins(verdict),
            "contenders": contenders,
            "comparisons": [
                {"a": c.names[0], "b": c.names[1], "std": c.std, **to_builtins(c.estimate)}
                for c in standing.comparisons
            ],
            "protocol": self.protocol.to_json(),
            "tuning": self.tuning.to_json(),
            "cost": self.cost(),
            "environment": self.trials.of_first_run("environment"),
            "num_samples": self.trials.of_first_run("num_samples"),
            "not_tried": [*_edges(contenders), *self._not_tried()],
            "commands": self._commands(folder),
            "continue": self.continuing(),
        }

    def _contender(self, tuned: Tuned, standing: Standing) -> dict[str, Any]:
        name, best = tuned.contender.name, tuned.best(self.protocol)
        results = self.fresh.results.get(name, [])
        known = [value for value in results if value is not None]
        rule, sizes = self.protocol.rule, [abs(value) for value in known]
        mean = estimate(known, rule.alpha, sizes, self._bounds()) if known else None
        setting = () if best is None else best
        runs = [self.trials.state(self.fresh.words(tuned, setting, seed)) for seed in range(len(results))]
        beaten_by, at = standing.beaten.get(name, (None, None))
        groups = {"failed": standing.failed, "active": standing.active}
        states = (state for state, names in groups.items() if name in names)
        return {
            "name": name,
            "overrides": list(tuned.contender.words),
            "best": dict(zip(self.protocol.keys, setting, strict=True)) if setting else {},
            "extended": tuned.extended_keys,
            "at_end": tuned.keys_at_end(self.protocol),
            "results": results,
            "runs": [run["run"] for run in runs],
            "num_seeds": len(known),
            "mean": mean and mean.mean,
            "low": mean and mean.low,
            "high": mean and mean.high,
            "std": spread(known) if len(known) > 1 else None,
            "state": "beaten" if beaten_by else next(states, "without results"),
            "beaten_by": beaten_by,
            "beaten_after": at,
        }

    def _bounds(self) -> tuple[float, float]:
        """Return the range of the metric, in which intervals of means stay."""
        values = [value for results in self.fresh.results.values() for value in results if value is not None]
        return bounds_of(self.protocol.rule.metric, map(flatten, self._configs().values()), values)

    def _not_tried(self) -> list[str]:
        keys = self.protocol.keys
        tuned_keys = f"Other keys than {' and '.join(keys)}" if keys else "Any key: nothing was tuned"
        texts = [f"{tuned_keys}. All others are those of the config and of each contender's option."]
        if self.tuning.why_ended:
            beyond = [tuned.contender.name for tuned in self.tuning.contenders if tuned.extended_keys]
            where = f" (beyond the end of the range for {' and '.join(beyond)})" if beyond else ""
            rounds = f"{self.tuning.num_rounds} of {self.protocol.rounds} further rounds{where}"
            texts.append(f"More tuning: it had {rounds}, because {self.tuning.why_ended}.")
        if keys:
            texts.append("More than one seed for each setting of the tuning.")
            metrics = (self.protocol.choice.metric, self.protocol.rule.metric)
            if len({metric.partition("/")[0] for metric in metrics}) == 1:
                texts.append(
                    "Another split: the same one chose the settings and judges them, with new seeds."
                )
        configs, asked = self._configs(), [*self.protocol.keys, *self._given_keys()]
        for key, values in unasked_differences([*map(flatten, configs.values())], asked).items():
            pairs = ", ".join(f"{name} {shown(value)}" for name, value in zip(configs, values, strict=True))
            texts.append(f"Equal values of {key}, in which they differ too: {pairs}.")
        texts.append("Other data, models, durations and batch sizes.")
        return texts

    def _configs(self) -> dict[str, Mapping[str, Any]]:
        """Return the config of the first run of each contender."""
        configs, seed = dict[str, Mapping[str, Any]](), self.protocol.first_seed
        for tuned in self.tuning.contenders:
            words = self.tuning.words(tuned, first_settings(tuned.contender.ranges)[0], seed)
            if job := self.trials.job(words):
                configs[tuned.contender.name] = job.config
        return configs

    def _given_keys(self) -> list[str]:
        """Return the keys of the contenders' overrides."""
        return list(dict.fromkeys(key_of(word) for c in self.protocol.contenders for word in c.words))

    def _commands(self, folder: Path) -> list[str]:
        """Return the commands that repeat the study, compare its runs, and train the winner."""
        over = ["--best-over", ",".join(self.protocol.keys)] if self.protocol.keys else []
        compare = ["hydrant", "compare", relative(folder), "--by", ",".join(self._given_keys()), *over]
        commands = [self.command(), text.shell_line([*compare, "--metric", self.protocol.rule.metric])]
        for tuned in self.tuning.contenders:
            if tuned.contender.name == self.fresh.verdict().winner:
                best = tuned.best(self.protocol) or ()
                named = [word for word in self.protocol.common if not word.startswith("name=")]
                commands.append(text.shell_line(["hydrant", "train", *named, *tuned.words(best)]))
        return commands


def _short(values: Mapping[str, Any], digits: int = 6) -> dict[str, Any]:
    """Return values with six digits of each fraction, or `digits`, which is what a reader needs."""
    return {key: float(f"{x:.{digits}g}") if isinstance(x, float) else x for key, x in values.items()}


def _edges(contenders: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each tuned key whose best value is at an end of those that were tried."""
    best = dict[str, list[str]]()
    for row in contenders:
        for key in row["at_end"]:
            best.setdefault(key, []).append(f"{row['best'][key]} of {row['name']}")
    said = "is the smallest or the largest tried"
    return [f"The best {key} {said}: {first_few(values)}. Try further ones." for key, values in best.items()]


def closing_lines(content: Mapping[str, Any], folder: Path) -> list[str]:
    """Return what the terminal says at the end, for the content of study.json."""
    used, limits = content["cost"], Budget(content["protocol"]["budget"]).describe()
    spent = f"{used['runs']:g} run{'s' * (used['runs'] != 1)}, {used['updates']:,g} updates, "
    spent += f"{used['wall_seconds']:.0f} s, {used['cpu_seconds']:.0f} processor seconds"
    table = results_table(content)
    left = {n for n, title in enumerate(table[0]) if title in ("contender", "tuned to", "state")}
    return [
        "",
        *text.align_columns(table, left),
        "",
        content["verdict"]["sentence"],
        *_edges(content["contenders"]),
        f"It used {spent}{f' of {limits}' * bool(limits)}. {relative(folder)}/{REPORT} is the report.",
        *([] if content["continue"] is None else [f"To continue: {content['continue']}"]),
    ]


def continue_record(folder: Path, record: Report, earlier: StudyFile) -> None:
    """Record that a study runs again, before its first run of this start: a kill loses neither protocol nor cost.

    The earlier answer stays until this start has read its runs.
    """
    write_json(folder / RESULT, to_builtins(earlier) | {"is_running": True, "cost": record.cost()})


def write_record(folder: Path, record: Report, *, is_running: bool) -> dict[str, Any]:
    """Write study.json and study.md; the picture, if the study does not go on. Return the content of study.json."""
    content = record.to_json(folder, is_running=is_running)
    if not is_running and record.fresh.results:
        tell_listeners("on_study_end", content, folder / PICTURE)
    write_json(folder / RESULT, content)
    replace_file(folder / REPORT, report_text(content))
    return content


def report_text(content: Mapping[str, Any]) -> str:
    """Return study.md for the content of study.json."""
    sections = [
        (f"# {content['question']}", [content["verdict"]["sentence"]]),
        ("## Protocol", [f"- {line}" for line in content["protocol"]["sentences"]]),
        ("## Results", _results(content)),
        ("## Tuning", _tuning(content)),
        ("## Cost", [_cost(content), *_environment(content)]),
        ("## Not tried", [f"- {line}" for line in content["not_tried"]]),
        ("## Repeat it", ["```bash", *content["commands"], "```"]),
    ]
    parts = [f"{title}\n\n" + "\n".join(lines) for title, lines in sections if lines]
    return "\n\n".join(parts) + "\n"


def by_rank(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the contenders, the best mean first, those without one last."""
    sign = -1 if content["protocol"]["mode"] == "max" else 1
    return sorted(
        content["contenders"], key=lambda row: (row["mean"] is None, sign * (row["mean"] or 0.0), row["name"])
    )


def results_table(content: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of the contenders with fresh seeds, below a row of titles."""
    protocol, has_best = content["protocol"], bool(content["tuning"]["trials"])
    interval = f"interval ({100 * (1 - protocol['alpha']):.4g} %)"
    tuned = ["tuned to"] if has_best else []
    better = "higher" if protocol["mode"] == "max" else "lower"
    metric = f"{protocol['metric']} ({better} is better)"
    head = ["contender", *tuned, metric, interval, "std", "seeds", "state"]
    return [head, *(_row(row, result_digits(content), has_best=has_best) for row in by_rank(content))]


def table_caption(content: Mapping[str, Any]) -> str:
    """Return what the numbers of the table of the contenders are."""
    return (
        f"{content['protocol']['metric']}: the mean over the fresh seeds of its last values. std: "
        "their standard deviation. The intervals hold after each seed, however often one looks. Active: not beaten."
    )


def result_digits(content: Mapping[str, Any]) -> int:
    """Return how many digits tell the means of the contenders and the ends of their intervals apart."""
    return text.digits_of(row[key] for row in content["contenders"] for key in ("mean", "low", "high"))


def _results(content: Mapping[str, Any]) -> list[str]:
    """Return a table of the contenders with fresh seeds, a picture, and a table of their differences."""
    protocol = content["protocol"]
    direction = "above" if protocol["mode"] == "max" else "below"
    pair_level = f"{100 * (1 - protocol['pair_alpha']):.4g} %"
    lines = [text.paper_table("markdown", results_table(content)), "", table_caption(content)]
    if any(row["mean"] is not None for row in content["contenders"]) and not content["is_running"]:
        alt = f"{protocol['metric']} of each contender: its mean with the interval, and each seed"
        lines += ["", f"![{alt}]({PICTURE})"]
    compared = content["comparisons"]
    digits = text.digits_of(gap[key] for gap in compared for key in ("mean", "low", "high"))
    gaps = [
        [f"{gap['a']} - {gap['b']}", text.number(gap["mean"], digits, "+"),
         text.interval(gap["low"], gap["high"], digits, "+"), str(gap["num_pairs"])]
        for gap in compared
    ]  # fmt: skip
    difference = f"paired difference ({direction} 0: the first is better)"
    title = [difference, "mean", f"interval ({pair_level})", "seeds"]
    return [*lines, "", text.paper_table("markdown", [title, *gaps])] if gaps else lines


def _row(row: Mapping[str, Any], digits: int, *, has_best: bool) -> list[str]:
    state = row["state"]
    if row["beaten_by"]:
        state = f"beaten by {row['beaten_by']} after {row['beaten_after']} seeds"
    best = ", ".join(f"{key}={value}" for key, value in row["best"].items()) or "-"
    std = "-" if row["std"] is None else f"{row['std']:.2g}"
    mean, ends = text.number(row["mean"], digits), text.interval(row["low"], row["high"], digits)
    return [row["name"], *([best] if has_best else []), mean, ends, std, str(row["num_seeds"]), state]


def _tuning(content: Mapping[str, Any]) -> list[str]:
    """Return a table of each contender's settings, in the order of the tuning, with their results."""
    protocol, rows = content["protocol"], list[list[str]]()
    for one in content["contenders"]:
        trials = [trial for trial in content["tuning"]["trials"] if trial["contender"] == one["name"]]
        digits = text.digits_of(trial["result"] for trial in trials)
        for trial in trials:
            result = trial["state"] if trial["result"] is None else text.number(trial["result"], digits)
            is_best = bool(one["best"]) and trial["values"] == one["best"]
            rows.append([one["name"], *trial["values"].values(), f"**{result}**" if is_best else result])
    if not rows:
        return []
    keys = next(iter(protocol["tuning"].values()))
    wider = [one["name"] for one in content["contenders"] if one["extended"]]
    beyond = [f"Beyond the first range: {', '.join(wider)}."] if wider else []
    head = ["contender", *keys, protocol["tuning_metric"] or protocol["metric"]]
    said = f"All of seed {protocol['first_seed']}, in their order; the chosen ones are bold."
    return [text.paper_table("markdown", [head, *rows]), "", " ".join([said, *beyond])]


def _environment(content: Mapping[str, Any]) -> list[str]:
    """Return on what the runs were trained, as the first one records it."""
    environment = content["environment"]
    names = {"hydrant": "Hydrant", "torch": "PyTorch", "python": "Python", "cuda": "CUDA", "gpu": "",
             "git_commit": "at the commit"}  # fmt: skip
    texts = [f"{name} {environment[key]}".strip() for key, name in names.items() if environment.get(key)]
    dirty = " with changes" if environment.get("git_dirty") else ""
    return ["", f"Trained with {', '.join(texts)}{dirty}."] if texts else []


def _cost(content: Mapping[str, Any]) -> str:
    cost, budget = content["cost"], content["protocol"]["budget"]
    texts = [
        f"{cost[key]:,.0f} {name}" + (f" (of at most {budget[key]:,g})" if key in budget else "")
        for key, name in (("runs", "runs"), ("updates", "updates"), ("wall_seconds", "seconds"),
                          ("cpu_seconds", "processor seconds"))
    ]  # fmt: skip
    return f"{', '.join(texts)}, in {cost['num_starts']} start{'s' * (cost['num_starts'] != 1)}."
