"""Run benchmarks one after the other, and write the pages in docs/internals from all results."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks import BENCHMARKS, GPU_PARTS, PARTS, document
from benchmarks.figures import table
from benchmarks.report import Report
from hydrant.runs.reporter import describe_environment

PACKAGES = (
    "lightning", "accelerate", "pytorch-accelerated", "transformers", "timm", "torchvision", "hydra-core", "wandb",
    "tensorboard",
)  # fmt: skip


def main() -> int:
    """Return 1 if something failed, else 0."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    what = f"`cpu`, a part of scripts/gpu ({', '.join(GPU_PARTS)}) or single benchmarks; `pages` only writes the pages"
    parser.add_argument("what", nargs="*", default=["cpu"], help=what)
    quick = "only test that the benchmarks run; the figures are meaningless"
    parser.add_argument("--quick", action="store_true", help=quick)
    output = (
        "the JSON file, or a folder for one that names the machine (default: a new one in benchmarks/results)"
    )
    parser.add_argument("--output", type=Path, help=output)
    cells = "measure only the cells whose title matches"
    parser.add_argument("--cells", metavar="REGEX", default="", help=cells)
    options = parser.parse_args()
    if options.what == ["pages"]:
        document.write()
        return 0
    parts = {"cpu": PARTS["cpu"], **GPU_PARTS}
    names = [name for word in options.what for name in parts.get(word, [word])]
    if unknown := [name for name in names if name not in BENCHMARKS]:
        choices = ", ".join([*parts, *BENCHMARKS])
        parser.error(f"no such part or benchmark: {', '.join(unknown)}; choose from {choices}")
    if (
        not options.quick
        and not torch.cuda.is_available()
        and (of_gpu := [w for w in options.what if w in GPU_PARTS])
    ):
        parser.error(
            f"{', '.join(of_gpu)}: needs a GPU, and torch finds none here; --quick tries the code without one"
        )
    measured = environment() | {"quick": options.quick}
    output = options.output or document.RESULTS / f"{document.stem(measured, options.what)}.json"
    if output.is_dir():
        output /= f"{document.machine(measured)}-{'-'.join(options.what)}.json"
    report = Report(output, measured)
    failures = [
        failure
        for name in names
        for failure in show(name, report.measure(name, quick=options.quick, cells=options.cells))
    ]
    if not options.quick and options.output is None:
        document.write()
    print(f"wrote {output}", *(f"failed: {failure['what']}" for failure in failures), sep="\n")
    return int(bool(failures))


def show(name: str, benchmark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Print the results of a benchmark and return its failures."""
    print(
        f"\n{name}: {benchmark['doc']}  [{benchmark['seconds']} s]\n", *table(benchmark["figures"]), sep="\n"
    )
    for failure in benchmark["failures"]:
        print(f"failed: {failure['what']}: {failure['error']}")
    sys.stdout.flush()
    return benchmark["failures"]


def environment() -> dict[str, Any]:
    """Describe when, on which machine and with which packages the benchmarks run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    described = describe_environment(device, 1)
    described["git_commit"] = described["git_commit"] or os.environ.get("GIT_COMMIT")
    described["git_dirty"] = described["git_dirty"] and code_has_changes()
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **described,
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "packages": {name: number for name in PACKAGES if (number := installed_version(name)) is not None},
    }


def code_has_changes() -> bool:
    """Return whether what is measured differs from the commit. New results and pages do not count."""
    words = ["git", "status", "--porcelain", "--untracked-files=no", "src", "conf", "benchmarks/*.py"]
    return bool(subprocess.run(words, cwd=document.ROOT, capture_output=True, check=True).stdout)


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
    sys.exit(main())
