"""Measure what is asked for, one benchmark after the other, and write the pages in docs/ from all results."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks import BENCHMARKS, PARTS, document
from benchmarks.figures import Figure, table
from hydrant.environment import describe_environment

PACKAGES = (
    "lightning", "accelerate", "pytorch-accelerated", "transformers", "timm", "torchvision", "hydra-core", "wandb",
    "tensorboard",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="*",
        default=["cpu"],
        help=f"parts ({', '.join(PARTS)}) or single benchmarks; `pages` only writes the pages from what there is",
    )
    parser.add_argument(
        "--quick", action="store_true", help="see only whether it works; the figures mean nothing"
    )
    parser.add_argument("--output", type=Path, help="the JSON file; in benchmarks/results/ if not given")
    asked = parser.parse_args()
    if asked.what == ["pages"]:
        document.write()
        return
    names = [name for word in asked.what for name in PARTS.get(word, [word])]
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(
            f"no such part or benchmark: {', '.join(unknown)}; there are {', '.join([*PARTS, *BENCHMARKS])}"
        )
    found = {"measured": where() | {"quick": asked.quick}, "benchmarks": {}}
    output = asked.output or document.RESULTS / f"{document.stem(found['measured'], asked.what)}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        found["benchmarks"][name] = run(name, quick=asked.quick)
        output.write_text(
            json.dumps(found, indent=2) + "\n", encoding="utf-8"
        )  # an interrupted one keeps what it has
    if not asked.quick and asked.output is None:
        document.write()
    print(f"{output} written")


def run(name: str, *, quick: bool) -> dict[str, Any]:
    """One benchmark, and its table on the terminal."""
    module = importlib.import_module(f"benchmarks.{name}")
    began = datetime.now(UTC)
    figures: list[Figure] = module.measure(quick=quick)
    seconds = round((datetime.now(UTC) - began).total_seconds())
    rows = [figure.plain() for figure in figures]
    print(f"\n{(module.__doc__ or name).strip()}  [{seconds} s]\n", *table(rows), sep="\n", flush=True)
    return {"doc": (module.__doc__ or "").strip(), "seconds": seconds, "figures": rows}


def where() -> dict[str, Any]:
    """When and on what it is measured."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    environment = describe_environment(device, 1)
    environment["git_commit"] = environment["git_commit"] or os.environ.get("GIT_COMMIT")
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **environment,
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "packages": {name: found for name in PACKAGES if (found := installed(name)) is not None},
    }


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


if __name__ == "__main__":
    sys.exit(main())
