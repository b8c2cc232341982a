"""How long torch.compile takes until the first update.

A ViT of 24 blocks (48 wide, 3 heads, images of 32 pixels in patches of 16, batches of 4), compiled by Inductor as a
whole (`compile=default`) and by its blocks (`compile=blocks`): each in a process of its own that makes one update, with
a folder of compiled code of its own, which holds nothing of the model the first time (cold) and all of it the second
time (warm). What Inductor finds out about compiler and processor, once for every such folder, is there both times; the
seconds that it takes, with a tiny network, are a row of their own. The others are from a model that is built to its
first update. All that is seven times, whole and by blocks in turn; the warm ones are after all of the cold ones. The
losses are compared with those of the eager model.

And a sweep over two learning rates, with one folder of compiled code for both jobs: how many graphs the second one
had to compile, its update of the weights compiled too, rather than to find them there.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import ROOT
from hydrant.config import check, compose
from hydrant.measuring import Cell, Row, measure_grid, rows_of

VIT = ("experiment=vit_tiny_fake", "global_batch_size=4", "eval_batch_size=4")
BLOCKS = "<= 0.2"
LRS = ("0.001", "0.003")
EAGER = {"compile": "eager", "block": "0"}
REMAINDER = (
    "by blocks, three quarters of the time is waiting for the C++ compiler, for 10 distinct kernels of a block and its "
    "gradients; the whole waits a fifth of its time, for 20 kernels, since alike blocks share them. Without the C++ "
    "compiler it is less than 0.1: tracing and lowering are what grows with the number of blocks."
)


def measure(*, quick: bool) -> list[Figure]:
    """Whole and by blocks, cold and warm, and the second job of a sweep."""
    own = ("compile.backend=aot_eager",) if quick else ()
    depth, num_times = (2, 1) if quick else (24, 7)
    with tempfile.TemporaryDirectory() as folder:
        tiny = [_cell(0, "default", "data=synthetic", "model=mlp", *own)]
        first = _measured(tiny, Path(folder), repeats=1)[0].repeats[0].start_seconds
        rows = _times(depth, num_times, own, primed=Path(folder, "0"))
    note = f"losses at most {max(row.loss_difference or 0.0 for row in rows):.1g} of eager's apart"
    seconds = {
        f"{title}, {when}": [r.repeats[at].start_seconds for r in rows if r.labels["compile"] == kind]
        for kind, title in (("default", "whole"), ("blocks", "by blocks"))
        for at, when in enumerate(("cold", "warm"))
    }

    def ratio(ours: str, theirs: str, goal: str) -> Figure:
        value = paired(seconds[ours], seconds[theirs], lambda own, other: own / other)
        return Figure(f"{ours}, to {theirs}", value, "x", goal, remainder=REMAINDER if goal == BLOCKS else "")

    return [
        Figure("a tiny network, into an empty folder", first, "s"),
        *(Figure(what, interval(own), "s", note=note) for what, own in seconds.items()),
        ratio("by blocks, cold", "whole, cold", BLOCKS),
        ratio("whole, warm", "whole, cold", "<= 0.35"),
        ratio("by blocks, warm", "by blocks, cold", "<= 0.35"),
        _second_job(own),
    ]


def _times(depth: int, num_times: int, own: tuple[str, ...], primed: Path) -> list[Row]:
    """Rows of a cold and a warm repeat, of each kind in turn; the first row is eager."""
    vit = (*VIT, f"+model.kwargs={{depth: {depth}, embed_dim: 48, num_heads: 3}}")
    cells = [_cell(0, "eager", *vit)]
    for number in range(num_times):
        kinds = ("default", "blocks") if number % 2 == 0 else ("blocks", "default")
        cells += [_cell(number, kind, *vit, *own) for kind in kinds]
    with tempfile.TemporaryDirectory() as folder:
        for position in range(len(cells)):
            shutil.copytree(primed, Path(folder, str(position)))
        return _measured(cells, Path(folder), repeats=2)


def _cell(number: int, kind: str, *words: str) -> Cell:
    own = () if kind == "eager" else ("compile.check=false",)
    labels = {"compile": kind, "block": str(number)}
    return Cell(labels, check(compose([*words, "tracker=local", f"compile={kind}", *own])))


def _measured(cells: list[Cell], folder: Path, *, repeats: int) -> list[Row]:
    rows = rows_of([(cell.labels, EAGER) for cell in cells])
    for cell, found in measure_grid(cells, repeats=repeats, num_updates=2, warmup=1, cache_dir=folder):
        if found.error is not None:
            raise RuntimeError(f"{cell.labels}: {found.error}")
        rows[cells.index(cell)].repeats.append(found)
    return rows


def _second_job(own: tuple[str, ...]) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "data=digits", "model=mlp", "tracker=local", "duration=3", "eval_every=null", "save_every=null",
            "log_every=1", "compile=default", "compile.optimizer=true", f"compile.cache_dir={folder}/code",
            *own, "name=lrs", f"optimizer.lr={','.join(LRS)}",
        ]  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        }
        subprocess.run(
            [sys.executable, ROOT / "train.py", "--multirun", *words],
            cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        sweep = Path(folder, "multirun", "lrs")
        with (sweep / "sweep.csv").open() as table:
            runs = {row["optimizer.lr"]: row["run"] for row in csv.DictReader(table)}
        reports = [json.loads((sweep / runs[lr] / "compile_report.json").read_text()) for lr in LRS]
    first, second = (report["cache"] for report in reports)
    note = f"the first one compiled {first['misses']}; the second one found {second['hits']}"
    return Figure("graphs that the second job of a sweep compiled", second["misses"], "", "= 0", note)
