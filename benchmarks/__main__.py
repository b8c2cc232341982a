"""Run benchmarks one after the other, and write the pages in docs/internals from all results."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks import BENCHMARKS, PARTS, document
from benchmarks.figures import Figure, table
from hydrant.runs.environment import describe_environment

PACKAGES = (
    "lightning", "accelerate", "pytorch-accelerated", "transformers", "timm", "torchvision", "hydra-core", "wandb",
    "tensorboard",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    what = f"parts ({', '.join(PARTS)}) or single benchmarks; `pages` only writes the pages, from existing results"
    parser.add_argument("what", nargs="*", default=["cpu"], help=what)
    quick = "only test that the benchmarks run; the figures are meaningless"
    parser.add_argument("--quick", action="store_true", help=quick)
    output = "the JSON file (default: a new file in benchmarks/results/)"
    parser.add_argument("--output", type=Path, help=output)
    options = parser.parse_args()
    if options.what == ["pages"]:
        document.write()
        return
    names = [name for word in options.what for name in PARTS.get(word, [word])]
    if unknown := [name for name in names if name not in BENCHMARKS]:
        choices = ", ".join([*PARTS, *BENCHMARKS])
        parser.error(f"no such part or benchmark: {', '.join(unknown)}; choose from {choices}")
    results = {"measured": environment() | {"quick": options.quick}, "benchmarks": {}}
    output = options.output or document.RESULTS / f"{document.stem(results['measured'], options.what)}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        results["benchmarks"][name] = run(name, quick=options.quick)
        # after each benchmark, so that an interrupt loses none of the finished ones
        output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if not options.quick and options.output is None:
        document.write()
    print(f"wrote {output}")


def run(name: str, *, quick: bool) -> dict[str, Any]:
    """Run one benchmark, print its table and return its result for JSON."""
    module = importlib.import_module(f"benchmarks.{name}")
    start = datetime.now(UTC)
    figures: list[Figure] = module.measure(quick=quick)
    seconds = round((datetime.now(UTC) - start).total_seconds())
    rows = [figure.as_dict() for figure in figures]
    print(f"\n{(module.__doc__ or name).strip()}  [{seconds} s]\n", *table(rows), sep="\n", flush=True)
    return {"doc": (module.__doc__ or "").strip(), "seconds": seconds, "figures": rows}


def environment() -> dict[str, Any]:
    """Describe when, on which machine and with which packages the benchmarks run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    described = describe_environment(device, 1)
    described["git_commit"] = described["git_commit"] or os.environ.get("GIT_COMMIT")
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **described,
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "packages": {name: number for name in PACKAGES if (number := installed_version(name)) is not None},
    }


def installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
