"""study.md, the answer of a study as a page that can be pasted into an appendix or a pull request; and study.png."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.terminal.text import digits_of, interval, number

REPORT = "study.md"
PICTURE = "study.png"


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


def draw_means(content: Mapping[str, Any], path: Path) -> None:
    """Draw the mean of each contender with its interval, and the results with its seeds, the best one on top."""
    from hydrant.training.plotting import Measured, draw_intervals  # imports torch

    rows = [
        Measured(row["name"], [x for x in row["results"] if x is not None], row["low"], row["high"])
        for row in by_rank(content)
        if row["mean"] is not None
    ]
    if rows:
        draw_intervals(rows, content["protocol"]["metric"], path)


def results_table(content: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of the contenders with fresh seeds, below a row of titles."""
    protocol, has_best = content["protocol"], bool(content["tuning"]["trials"])
    interval = f"interval ({100 * (1 - protocol['alpha']):.4g} %)"
    best = ["best"] if has_best else []
    head = ["contender", *best, protocol["metric"], interval, "std", "seeds", "state"]
    return [head, *(_row(row, result_digits(content), has_best=has_best) for row in by_rank(content))]


def result_digits(content: Mapping[str, Any]) -> int:
    """Return how many digits tell the means of the contenders and the ends of their intervals apart."""
    return digits_of(row[key] for row in content["contenders"] for key in ("mean", "low", "high"))


def _results(content: Mapping[str, Any]) -> list[str]:
    """Return a table of the contenders with fresh seeds, a picture, and a table of their differences."""
    protocol = content["protocol"]
    better, direction = ("higher", "above") if protocol["mode"] == "max" else ("lower", "below")
    pair_level = f"{100 * (1 - protocol['pair_alpha']):.4g} %"
    head, *rows = results_table(content)
    lines = _table(head, rows)
    lines += [
        "",
        f"{protocol['metric']}: the mean over the fresh seeds of its last values; {better} is better. std: the "
        "standard deviation over these seeds. The intervals hold after each seed, so looking at them is allowed.",
    ]
    if any(row["mean"] is not None for row in content["contenders"]) and not content["is_running"]:
        lines += [
            "",
            f"![{protocol['metric']} of each contender: its mean with the interval, and each seed]({PICTURE})",
        ]
    compared = content["comparisons"]
    digits = digits_of(gap[key] for gap in compared for key in ("mean", "low", "high"))
    gaps = [
        [f"{gap['a']} - {gap['b']}", number(gap["mean"], digits, "+"),
         interval(gap["low"], gap["high"], digits, "+"), str(gap["num_pairs"])]
        for gap in compared
    ]  # fmt: skip
    difference = f"paired difference ({direction} 0: the first is better)"
    title = [difference, "mean", f"interval ({pair_level})", "seeds"]
    return [*lines, "", *_table(title, gaps)] if gaps else lines


def _row(row: Mapping[str, Any], digits: int, *, has_best: bool) -> list[str]:
    state = row["state"]
    if row["beaten_by"]:
        state = f"beaten by {row['beaten_by']} after {row['beaten_after']} seeds"
    best = ", ".join(f"{key}={value}" for key, value in row["best"].items()) or "-"
    std = "-" if row["std"] is None else f"{row['std']:.2g}"
    mean, ends = number(row["mean"], digits), interval(row["low"], row["high"], digits)
    return [row["name"], *([best] if has_best else []), mean, ends, std, str(row["num_seeds"]), state]


def _tuning(content: Mapping[str, Any]) -> list[str]:
    """Return a table of each contender's settings, in the order of the tuning, with their results."""
    protocol, rows = content["protocol"], list[list[str]]()
    for one in content["contenders"]:
        trials = [trial for trial in content["tuning"]["trials"] if trial["contender"] == one["name"]]
        digits = digits_of(trial["result"] for trial in trials)
        for trial in trials:
            result = trial["state"] if trial["result"] is None else number(trial["result"], digits)
            is_best = bool(one["best"]) and trial["values"] == one["best"]
            rows.append([one["name"], *trial["values"].values(), f"**{result}**" if is_best else result])
    if not rows:
        return []
    keys = next(iter(protocol["tuning"].values()))
    wider = [one["name"] for one in content["contenders"] if one["extended"]]
    beyond = [f"Beyond the first range: {', '.join(wider)}."] if wider else []
    table = _table(["contender", *keys, protocol["tuning_metric"] or protocol["metric"]], rows)
    said = f"All of seed {protocol['first_seed']}, in their order; the chosen ones are bold."
    return [*table, "", " ".join([said, *beyond])]


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


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
