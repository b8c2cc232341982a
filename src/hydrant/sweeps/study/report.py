"""study.md: the answer of a study as a page that can be pasted into an appendix or a pull request."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

REPORT = "study.md"


def report_text(content: Mapping[str, Any]) -> str:
    """Return study.md for the content of study.json."""
    sections = [
        (f"# {content['question']}", [content["verdict"]["sentence"]]),
        ("## Protocol", [f"- {line}" for line in content["protocol"]["sentences"]]),
        ("## Results", _results(content)),
        ("## Tuning", _tuning(content)),
        ("## Cost", [_cost(content)]),
        ("## Not tried", [f"- {line}" for line in content["not_tried"]]),
        ("## Repeat it", ["```bash", *content["commands"], "```"]),
    ]
    parts = [f"{title}\n\n" + "\n".join(lines) for title, lines in sections if lines]
    return "\n\n".join(parts) + "\n"


def _results(content: Mapping[str, Any]) -> list[str]:
    """Return a table of the contenders with fresh seeds, the best mean first, and one of their differences."""
    protocol = content["protocol"]
    sign = -1 if protocol["mode"] == "max" else 1
    rows = sorted(
        content["contenders"], key=lambda row: (row["mean"] is None, sign * (row["mean"] or 0.0), row["name"])
    )
    head = [
        "contender",
        *(["best"] if content["tuning"]["trials"] else []),
        protocol["metric"],
        "std",
        "seeds",
        "state",
    ]
    table = _table(head, [_row(row, has_best="best" in head) for row in rows])
    better = "higher" if protocol["mode"] == "max" else "lower"
    table += ["", f"{protocol['metric']}: {better} is better. std: the standard deviation over the seeds."]
    direction = "above" if protocol["mode"] == "max" else "below"
    gaps = [
        [f"{gap['a']} - {gap['b']}", f"{gap['mean']:+.4g}", _interval(gap), str(gap["num_pairs"])]
        for gap in content["comparisons"]
    ]
    interval = f"interval ({100 * (1 - protocol['pair_alpha']):.4g} %, for all looks)"
    return (
        [
            *table,
            "",
            *_table([f"difference ({direction} 0: the first is better)", "mean", interval, "pairs"], gaps),
        ]
        if gaps
        else table
    )


def _row(row: Mapping[str, Any], *, has_best: bool) -> list[str]:
    state = row["state"]
    if row["beaten_by"]:
        state = f"beaten by {row['beaten_by']} after {row['beaten_after']} seeds"
    best = ", ".join(f"{key}={value}" for key, value in row["best"].items()) or "-"
    mean = "-" if row["mean"] is None else f"{row['mean']:.4g}"
    known = [value for value in row["results"] if value is not None]
    std = f"{statistics.stdev(known):.2g}" if len(known) > 1 else "-"
    return [row["name"], *([best] if has_best else []), mean, std, str(len(row["results"])), state]


def _tuning(content: Mapping[str, Any]) -> list[str]:
    """Return one line for each contender: its settings in the order of the tuning, with their results."""
    extended = {one["name"]: one["extended"] for one in content["contenders"]}
    by_name = dict[str, list[str]]()
    for trial in content["tuning"]["trials"]:
        values = ", ".join(trial["values"].values())
        result = trial["state"] if trial["result"] is None else f"{trial['result']:.4g}"
        by_name.setdefault(trial["contender"], []).append(f"{values}: {result}")
    notes = {
        name: f" Beyond the first range of {' and '.join(keys)}." if keys else ""
        for name, keys in extended.items()
    }
    return [f"- {name}: {'; '.join(texts)}.{notes[name]}" for name, texts in by_name.items()]


def _cost(content: Mapping[str, Any]) -> str:
    cost, budget = content["cost"], content["protocol"]["budget"]
    texts = [
        f"{cost[key]:,.0f} {name}" + (f" (of at most {budget[key]:,g})" if key in budget else "")
        for key, name in (("runs", "runs"), ("updates", "updates"), ("wall_seconds", "seconds"),
                          ("cpu_seconds", "processor seconds"))
    ]  # fmt: skip
    return f"{', '.join(texts)}, in {cost['num_starts']} start{'s' * (cost['num_starts'] != 1)}."


def _interval(gap: Mapping[str, Any]) -> str:
    return "-" if gap["low"] is None else f"{gap['low']:+.4g} to {gap['high']:+.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
