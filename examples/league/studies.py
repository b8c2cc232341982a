"""The section of the league's page about its problems by `hydrant study`, written from studies.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.league.sweeps import MODELS, Model
from hydrant.extensions.study.report import by_rank
from hydrant.extensions.study.trials import RESULT, Budget
from hydrant.extensions.study.verdict import Reason, Rule, Standing, Verdict, find_verdict, judge
from hydrant.terminal.text import shell_line

FILE = Path(__file__).with_name("studies.json")
_KEPT = ("question", "verdict", "contenders", "comparisons", "protocol", "cost", "environment", "not_tried")


def command(model: Model) -> str:
    """Return the command of a model's study."""
    words = ("sweep=league", f"name=league_{model.name}", *model.words, "hydra/launcher=stacked")
    return shell_line(["hydrant", "study", *words])


def collect(folder: Path) -> None:
    """Write studies.json from the studies in a folder that have ended; those of other models stay."""
    found = {model.name: folder / f"league_{model.name}" / RESULT for model in MODELS}
    contents = {name: json.loads(file.read_text()) for name, file in found.items() if file.exists()}
    ended = {name: c for name, c in contents.items() if not c["is_running"] and c["verdict"]["ended_by"]}
    kept = {name: {key: content[key] for key in _KEPT} for name, content in ended.items()}
    kept = json.loads(FILE.read_text(encoding="utf-8")) | kept
    FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def judged(content: Mapping[str, Any]) -> tuple[Standing, Verdict]:
    """Return what `hydrant study` says today of the results of a study whose contenders all have some."""
    protocol, ended = content["protocol"], content["verdict"]["ended_by"]
    results = {row["name"]: row["results"] for row in content["contenders"]}
    level = protocol["metric"], protocol["mode"], protocol["alpha"], protocol["power"]
    rule = Rule(*level, protocol["min_difference"], len(results))
    budget = Budget(protocol["budget"]).describe()
    ends: dict[str, tuple[Reason, str]] = {
        "seeds": ("seeds", f"all {protocol['max_seeds']} seeds are used"),
        "budget": ("budget", f"no further round fits into the budget of {budget}"),
    }
    standing = judge(results, rule)
    return standing, find_verdict(standing, results, rule, {}, ends.get(ended))


def section() -> str:
    """Return the section."""
    return "\n".join(_lines(json.loads(FILE.read_text(encoding="utf-8"))))


def _lines(contents: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "## The same question by one command\n"
    yield "[`hydrant study`](../../docs/guides/study.md) tunes and tests in one command, whose protocol is"
    yield "[sweep=league](../../src/hydrant/extensions/library/conf/sweep/league.yaml). Its four optimizers were chosen"
    yield "after the tables above: `muon` and `soap` lead them, `adamw` is the usual one, and `sgd` the oldest. Each"
    yield "tries the range that its own option declares. The *last* loss of a run counts, of up to eight fresh seeds,"
    yield "and the intervals hold for all looks.\n"
    of_all = set[str].intersection(*(set(content["not_tried"]) for content in contents.values()))
    for model in MODELS:
        if content := contents.get(model.name):
            yield f"### {model.title}, by study\n"
            yield f"```text\n{command(model)}\n```\n"
            yield f"{judged(content)[1].sentence}\n"
            yield from _table(by_rank(content))
            cost = content["cost"]
            own = [line for line in content["not_tried"] if line not in of_all]
            not_tried = f" Not tried: {' '.join(own)}" if own else ""
            yield f"\n{cost['runs']:,} runs and {cost['cpu_seconds']:.0f} processor seconds.{not_tried}\n"
    if missing := [model.title for model in MODELS if model.name not in contents]:
        yield f"Not asked by this command yet: {', '.join(missing)}.\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| optimizer | best lr | val/loss | interval (95 %) | seeds | state |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        low = "" if row["low"] is None else f"{row['low']:.4f} to {row['high']:.4f}"
        beaten = f"beaten by {row['beaten_by']} after {row['beaten_after']} seeds"
        state = beaten if row["beaten_by"] else "not beaten" if row["state"] == "active" else row["state"]
        mean = "" if row["mean"] is None else f"{row['mean']:.4f}"
        lr = row["best"].get("optimizer.lr", "")
        yield f"| `{row['name']}` | {lr} | {mean} | {low} | {row['num_seeds']} | {state} |"
