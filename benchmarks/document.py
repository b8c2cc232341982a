"""docs/performance.md and docs/scale.md, from the newest result of each benchmark in benchmarks/results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import PARTS, scale_page
from benchmarks.figures import table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
HEAD = """\
# Performance

Every figure stands beside what it is compared with, measured in turn in the same run on the same machine. Written from
[benchmarks/results](../benchmarks/results), never by hand; [benchmarks](../benchmarks/README.md) says how.

```bash
scripts/bench
```
"""


def write() -> None:
    """Write the pages anew."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """The pages as the results have them."""
    found = newest()
    seconds = sum(found["cpu", name][1]["seconds"] for name in PARTS["cpu"] if ("cpu", name) in found)
    told = f"All of what a machine without a GPU can measure took {seconds / 60:.0f} minutes.\n"
    wanted = [(part, name) for part, names in PARTS.items() for name in names]
    sections = {key: section(*found[key]) for key in wanted if key in found}
    scale = sections.pop(("cpu", "scale"), "")
    missing = [key for key in wanted if key not in found]
    return {
        DOCS / "performance.md": "\n".join([HEAD, told, *sections.values(), *waiting(missing)]),
        DOCS / "scale.md": scale_page.text(scale),
    }


def waiting(missing: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What is built, and has no result yet."""
    lines = list[str]()
    for part, name in missing:
        head, _, _ = (import_module(f"benchmarks.{name}").__doc__ or name).partition("\n")
        lines.append(f"- {part.upper()}, `scripts/bench {name}`: {head}")
    if lines:
        yield "\n".join(["## Not measured yet, for want of the machine\n", *lines, ""])


def newest() -> dict[tuple[str, str], tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The newest result by machine and benchmark: where it was measured, and what was found."""
    whole: dict[tuple[str, str], tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    for found in sorted(results(), key=lambda found: found["measured"]["time"]):
        for name, benchmark in found["benchmarks"].items():
            whole["gpu" if found["measured"]["gpu"] else "cpu", name] = (found["measured"], benchmark)
    return whole


def section(measured: Mapping[str, Any], benchmark: Mapping[str, Any]) -> str:
    """What a benchmark is, where it was measured, and its table."""
    title, _, rest = benchmark["doc"].partition("\n")
    told = f"Measured {place(measured)}, in {benchmark['seconds']} s."
    head = f"## {title.rstrip('.')}\n\n{rest.strip()}\n\n{told}\n\n".replace("\n\n\n\n", "\n\n")
    return head + "\n".join(table(benchmark["figures"])) + "\n"


def results() -> Iterable[dict[str, Any]]:
    """What the files in benchmarks/results hold, but for those of `hydrant bench` and of quick tries."""
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "benchmarks" in found and not found["measured"]["quick"]:
            yield found


def place(measured: Mapping[str, Any]) -> str:
    """Where and when, in a few words."""
    packages = ", ".join(f"{name} {version}" for name, version in measured["packages"].items())
    on = measured["gpu"] or f"{measured['cores']} cores of {measured['cpu']}"
    commit = (measured["git_commit"] or "an unknown commit")[:10] + " with changes" * bool(
        measured["git_dirty"]
    )
    load = f"load {measured['load']:.2g} before"
    return f"{measured['time']} on {on} ({load}), torch {measured['torch']}, {packages}, at {commit}"


def stem(measured: Mapping[str, Any], words: Iterable[str]) -> str:
    """The name of a result file."""
    on = re.sub(r"[^a-z0-9]+", "-", (measured["gpu"] or f"cpu-{measured['cores']}-cores").lower()).strip("-")
    day, clock, _ = measured["time"].replace(":", "").split()
    return f"{day}-{clock}-{on}-{'-'.join(words)}"
