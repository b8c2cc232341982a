"""The time that torch.compile needs until the first update.

A ViT of 24 blocks (48 wide, 3 heads, images of 32 pixels in patches of 16, batches of 4) is compiled by Inductor as a
whole (`compile=default`) and block by block (`compile=blocks`). Each measurement is a separate process that makes one
update, with its own folder of compiled code: empty of the model's code in the cold start, full in the warm start. What
Inductor detects about compiler and processor, once per folder, is in the folder both times; a tiny network measures
the time of this detection in a separate row. The times are from the built model to its first update. Everything runs
seven times, whole and by blocks in turn, all cold starts before the warm ones. The losses are compared with those of
the eager model.

Then a sweep over two learning rates runs with one folder of compiled code for both jobs, with the optimizer step
compiled too. Counted are the graphs that the second job had to compile because it did not find them in the folder.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import ROOT, child_environment
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.extensions.bench.command import CellResult, measure_cells, with_baselines

VIT = ("experiment=vit_tiny_fake", "global_batch_size=4", "eval_batch_size=4")
BLOCKS = "<= 0.2"
LRS = ("0.001", "0.003")
REMAINDER = (
    "Compiled by blocks, three quarters of the time is waiting for the C++ compiler, for 10 distinct kernels of a "
    "block and its gradients. Compiled as a whole, a fifth of the time is such waiting, for 20 kernels: equal blocks "
    "share them. Without the C++ compiler the ratio is less than 0.1, because tracing and lowering are what grows with "
    "the number of blocks."
)


def measure(*, quick: bool) -> list[Figure]:
    """Measure whole and by blocks, cold and warm, and the second job of a sweep."""
    backend = ("compile.backend=aot_eager",) if quick else ()
    depth, num_times = (2, 1) if quick else (24, 7)
    with tempfile.TemporaryDirectory() as folder:
        tiny = [_cell("default", "data=synthetic", "model=mlp", *backend)]
        first = _measured(tiny, Path(folder), repeats=1)[0].repeats[0].start_seconds
        rows = _times(depth, num_times, backend, primed=Path(folder, "0"))
    note = f"losses at most {max(row.loss_difference or 0.0 for row in rows):.1g} of eager's apart"
    seconds = {
        f"{title}, {when}": [r.repeats[at].start_seconds for r in rows if r.labels["compile"] == kind]
        for kind, title in (("default", "whole"), ("blocks", "by blocks"))
        for at, when in enumerate(("cold", "warm"))
    }

    def ratio(first: str, second: str, goal: str) -> Figure:
        value = paired(seconds[first], seconds[second], lambda a, b: a / b)
        remainder = REMAINDER if goal == BLOCKS else ""
        return Figure(f"{first}, to {second}", value, "x", goal, remainder=remainder)

    return [
        Figure("a tiny network, into an empty folder", first, "s"),
        *(Figure(what, interval(values), "s", note=note) for what, values in seconds.items()),
        ratio("by blocks, cold", "whole, cold", BLOCKS),
        ratio("whole, warm", "whole, cold", "<= 0.35"),
        ratio("by blocks, warm", "by blocks, cold", "<= 0.35"),
        _second_job(backend),
    ]


def _times(depth: int, num_times: int, backend: tuple[str, ...], primed: Path) -> list[CellResult]:
    """Return one row per start with a cold and a warm repeat, kinds in turn. The first row is eager.

    Each row's folder of compiled code is a copy of `primed`.
    """
    vit = (*VIT, f"+model.kwargs={{depth: {depth}, embed_dim: 48, num_heads: 3}}")
    cells = [_cell("eager", *vit)]
    for number in range(num_times):
        kinds = ("default", "blocks") if number % 2 == 0 else ("blocks", "default")
        cells += [_cell(kind, *vit, *backend) for kind in kinds]
    with tempfile.TemporaryDirectory() as folder:
        for position in range(len(cells)):
            shutil.copytree(primed, Path(folder, str(position)))
        return _measured(cells, Path(folder), repeats=2)


def _cell(kind: str, *words: str) -> CellResult:
    no_check = () if kind == "eager" else ("compile.check=false",)
    config = check(compose([*words, "tracker=local", f"compile={kind}", *no_check]))
    return CellResult({"compile": kind}, config)


def _measured(cells: list[CellResult], folder: Path, *, repeats: int) -> list[CellResult]:
    cells = with_baselines(cells)
    for cell in measure_cells(cells, repeats=repeats, num_updates=2, warmup=1, cache_dir=folder):
        if cell.error is not None:
            raise RuntimeError(f"{cell.labels}: {cell.error}")
    return cells


def _second_job(backend: tuple[str, ...]) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "data=digits", "model=mlp", "tracker=local", "duration=3", "eval_every=null", "save_every=null",
            "log_every=1", "compile=default", "compile.optimizer=true", f"compile.cache_dir={folder}/code",
            *backend, "name=lrs", f"optimizer.lr={','.join(LRS)}",
        ]  # fmt: skip
        subprocess.run(
            [sys.executable, ROOT / "train.py", "--multirun", *words],
            cwd=folder, env=child_environment(), check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        sweep = Path(folder, "multirun", "lrs")
        with (sweep / "sweep.csv").open() as table:
            runs = {row["optimizer.lr"]: row["run"] for row in csv.DictReader(table)}
        reports = [json.loads((sweep / runs[lr] / "compile_report.json").read_text()) for lr in LRS]
    first, second = (report["cache"] for report in reports)
    note = f"the first job compiled {first['misses']} graphs, the second one loaded {second['hits']}"
    return Figure("graphs that the second job of a sweep compiled", second["misses"], "", "= 0", note)
