"""Write the pages of benchmarks from the newest result of each in benchmarks/results.

docs/internals/performance.md has the summary, benchmarks/results/README.md the goals and a section for each benchmark,
docs/internals/scale.md what follows for many ranks, and docs/guides/optimizers.md the costs of updates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import PARTS, optimizers_page, scale_page
from benchmarks.figures import rounded, table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs" / "internals"
HEAD = """\
# Performance

Each figure is measured in turn with what it is compared with, on the same machine.
[The results](../../benchmarks/results/README.md) have every figure with its interval, also on a GPU, and
[benchmarks](../../benchmarks/README.md) explains the method. `scripts/bench` writes both pages.

```bash
scripts/bench
```
"""
RESULTS_HEAD = """\
# Results of the benchmarks

The newest result of each benchmark. [Performance](../../docs/internals/performance.md) is the summary, and
[benchmarks](../README.md) explains the method. `scripts/bench` writes this page; do not edit it by hand.
"""

Results = dict[tuple[str, str], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""(environment, result) by (`cpu` or `gpu`, name of the benchmark)."""

SUMMARY = [
    ("time added to an update by the framework", "update_overhead",
     ("added by Hydrant", "added by Accelerate", "added by Lightning Trainer", "added by HF Trainer")),
    ("an update of the default run, compared with a plain loop (below 1 x: slower)", "whole_update",
     ("a fused update: faster by", "a compiled update: faster by")),
    ("short runs in a sweep", "sweep_rate", ("a sweep", "one process per run", "Hydra's multirun of Lightning")),
    ("a sweep of 64 jobs as one program", "stacked",
     ("a stacked sweep, against one process per run", "a stacked sweep, against Hydra's multirun of Lightning",
      "fixed cost of a lane, 8 learning rates")),
    ("time to the first update, beyond torch's own import", "start",
     ("first update, `tracker=local`", "first update, offline W&B")),
    ("loading data", "data_loading", ("Hydrant to DataLoader, no workers: digits", "Hydrant to timm: JPEG")),
    ("a save blocks training, as a multiple of a copy", "checkpoint_cost", ("the stall of a later save, to a copy",)),
    ("compiling a deep model by blocks, compared with the whole", "compile_time", ("by blocks, cold, to whole, cold",)),
]  # fmt: skip
"""What the summary shows: a question, a benchmark, and its rows."""


def write() -> None:
    """Write the pages."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Return the text of each page."""
    newest = newest_results()
    seconds = sum(newest["cpu", name][1]["seconds"] for name in PARTS["cpu"] if ("cpu", name) in newest)
    duration = f"All benchmarks for a machine without a GPU took {seconds / 60:.0f} minutes.\n"
    keys = [(part, name) for part, names in PARTS.items() for name in names]
    sections = {key: section(key[1], *newest[key]) for key in keys if key in newest}
    missing = [key for key in keys if key not in newest]
    short = [HEAD, *summary(newest), duration]
    full = [RESULTS_HEAD, *gpu_goals(newest), *sections.values(), *not_measured(missing)]
    written = {
        DOCS / "performance.md": "\n".join(short),
        RESULTS / "README.md": "\n".join(full),
        DOCS / "scale.md": scale_page.text(
            re.sub(r"[^\w -]", "", description("scale")[0].lower()).replace(" ", "-")
        ),
    }
    if costs := newest.get(("cpu", "update_cost")):
        guide = optimizers_page.PAGE
        written[guide] = optimizers_page.text(guide.read_text(encoding="utf-8"), *costs)
    return written


def description(name: str) -> tuple[str, str]:
    """Return the first sentence of a benchmark's docstring without its period, and the rest."""
    first, _, rest = (import_module(f"benchmarks.{name}").__doc__ or name).strip().partition("\n\n")
    return " ".join(first.split()).rstrip("."), rest.strip()


def summary(newest: Results) -> Iterator[str]:
    """Yield a table with the main results of a machine without a GPU."""
    lines = list[str]()
    for question, name, labels in SUMMARY:
        _, benchmark = newest.get(("cpu", name), ({}, {"figures": []}))
        rows = {row["what"]: f"{rounded(row['median'])} {row['unit']}" for row in benchmark["figures"]}
        results = "; ".join(f"{label} **{rows[label]}**" for label in labels if label in rows)
        lines += [f"| {question} | {results} |"] if results else []
    if lines:
        head = "Medians on a machine without a GPU:"
        yield "\n".join([f"{head}\n", "| question | result |", "| --- | --- |", *lines, ""])


def gpu_goals(newest: Results) -> Iterator[str]:
    """Yield a table of the goals on a GPU and what was measured."""
    lines = list[str]()
    for name in PARTS["gpu"]:
        _, benchmark = newest.get(("gpu", name), ({}, {"figures": []}))
        rows = {row["what"]: row for row in benchmark["figures"]}
        for what, goal in getattr(import_module(f"benchmarks.{name}"), "GOALS", {}).items():
            result = "not measured"
            if row := rows.get(what):
                result = f"{rounded(row['median'])} {row['unit']}".strip() + (
                    "" if row["is_met"] else ", **missed**"
                )
            lines.append(f"| `{name}` | {what} | {goal} | {result} |")
    head = "`scripts/gpu` measures them; see [benchmarks](../README.md#on-a-gpu)."
    yield "\n".join(["## Goals on a GPU\n", f"{head}\n", "| benchmark | figure | goal | result |",
                     "| --- | --- | --- | --- |", *lines, ""])  # fmt: skip


def not_measured(missing: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a section that lists the benchmarks without a result, if there are any."""
    lines = [f"- {machine.upper()}, `{name}`: {description(name)[0]}." for machine, name in missing]
    if lines:
        yield "\n".join(["## Not measured yet, because no such machine was available\n", *lines, ""])


def newest_results() -> Results:
    """Return the newest results. What one lacks is taken from an earlier one of the same GPU and torch."""
    newest: Results = {}
    for results in sorted(all_results(), key=lambda results: results["measured"]["time"]):
        measured = results["measured"]
        for name, benchmark in results["benchmarks"].items():
            key = "gpu" if measured["gpu"] else "cpu", name
            earlier = newest.get(key)
            if earlier and measured["gpu"] and all(earlier[0][of] == measured[of] for of in ("gpu", "torch")):
                benchmark = completed(benchmark, *earlier)
            newest[key] = (measured, benchmark)
    return newest


def completed(
    benchmark: Mapping[str, Any], measured: Mapping[str, Any], earlier: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a result with the cells that only an earlier one has. `earlier` says when those were measured."""
    old, new = earlier.get("cells", {}), benchmark.get("cells", {})
    lacking = [title for title, state in new.items() if state is None and old.get(title)]
    rows = {
        section: [row for row in earlier.get(section, []) if row.get("cell") in lacking]
        + benchmark.get(section, [])
        for section in ("figures", "failures", "profiles")
    }
    when = earlier.get("earlier", {})
    return {
        **benchmark,
        **rows,
        "cells": new | {title: old[title] for title in lacking},
        "earlier": {title: when.get(title, place(measured)) for title in lacking},
    }


def section(name: str, measured: Mapping[str, Any], benchmark: Mapping[str, Any]) -> str:
    """Return the section of a benchmark: its description, where it was measured, and its table."""
    title, rest = description(name)
    where = f"Measured {place(measured)}, in {benchmark['seconds']} s."
    figures = "\n".join(table(benchmark["figures"]))
    paragraphs = [f"## {title}", rest, where, figures, *unmeasured(benchmark), *profiles(benchmark)]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def unmeasured(benchmark: Mapping[str, Any]) -> Iterator[str]:
    """Yield a list of what failed, and of the parts that were not measured or only earlier, if there are any."""
    lines = [
        f"- failed: {row['what']}: `{(row['error'].splitlines() or [''])[-1]}`"
        for row in benchmark.get("failures", [])
    ]
    lines += [f"- {title}: measured {where}" for title, where in benchmark.get("earlier", {}).items()]
    lines += [
        f"- not measured: {title}" for title, state in benchmark.get("cells", {}).items() if state is None
    ]
    if lines:
        yield "\n".join(lines)


def profiles(benchmark: Mapping[str, Any]) -> Iterator[str]:
    """Yield the profiles, which show what takes the time where a goal was missed."""
    for row in benchmark.get("profiles", []):
        yield f"Where the time goes, {row['what']}:\n\n```text\n{row['text']}\n```"


def all_results() -> Iterable[dict[str, Any]]:
    """Yield the content of each file in benchmarks/results, except those of `hydrant bench` and of quick runs."""
    for path in sorted(RESULTS.glob("*.json")):
        results = json.loads(path.read_text(encoding="utf-8"))
        if "benchmarks" in results and not results["measured"]["quick"]:
            yield results


def place(measured: Mapping[str, Any]) -> str:
    """Describe when and where a result was measured."""
    packages = ", ".join(f"{name} {version}" for name, version in measured["packages"].items())
    on = measured["gpu"] or f"{measured['cores']} cores of {measured['cpu']}"
    commit = measured["git_commit"][:10] if measured["git_commit"] else "an unknown commit"
    commit += " with changes" if measured["git_dirty"] else ""
    load = f"load {measured['load']:.2g} before"
    return f"{measured['time']} on {on} ({load}), torch {measured['torch']}, {packages}, at {commit}"


def stem(measured: Mapping[str, Any], words: Iterable[str]) -> str:
    """Return the name of a result file, without `.json`."""
    day, clock, _ = measured["time"].replace(":", "").split()
    return f"{day}-{clock}-{machine(measured)}-{'-'.join(words)}"


def machine(measured: Mapping[str, Any]) -> str:
    """Return a name of the machine for file names."""
    name = measured["gpu"] or f"cpu-{measured['cores']}-cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
