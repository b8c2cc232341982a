"""Does Hydrant run on CUDA: every precision, every compile mode, ten optimizers with compiled updates, and resuming.

Each run is a `python train.py` of a few updates, several at a time. The table has its last training loss, which should
be about the same in all rows of a model. Runs that are killed with SIGKILL and continued are compared with the same
run without a kill, file by file, checkpoints byte by byte. Without CUDA, options that need it are left out.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.commands import at_once, train
from benchmarks.figures import Figure
from benchmarks.report import Cell
from benchmarks.turns import ROOT
from hydrant.config.groups import group_options

sys.path.append(str(ROOT / "tests" / "support"))
HAS_CUDA = torch.cuda.is_available()
VIT = ("experiment=vit_tiny_fake", "duration=6", "log_every=1", "optimizer=adamw")
DIGITS = ("data=digits", "duration=40", "log_every=10", "eval_every=null", "save_every=null")
OPTIMIZERS = ("sgd", "adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "adagrad", "adadelta", "asgd")
KILLED = ("tracker=local", "log_every=1", "save_every=40", "eval_every=200", "micro_batch_size=32",
          "averaging=ema", "deterministic=true")  # fmt: skip
NEED_CUDA = ("tf32", "fp8", "reduce_overhead", "max_autotune", "max_autotune_no_cudagraphs")
FILES = "files that differ after kills"
GOALS = {f"{FILES}: compile={mode}": "= 0" for mode in ("eager", "default", "reduce_overhead")}


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for each kind of run."""
    vit = (*VIT, "+model.kwargs.depth=2") if quick else VIT
    compiled = (*DIGITS, "compile=default" if HAS_CUDA else "compile=aot_eager", "compile.optimizer=true")
    runs = {
        "precisions": (vit, [f"precision={name}" for name in options("precision")]),
        "compile modes": ((*vit, "precision=bf16"), [f"compile={name}" for name in options("compile")]),
        "compiled updates": (compiled, [f"optimizer={name}" for name in OPTIMIZERS]),
    }
    limit = 2 if quick else None
    tried = {
        title: partial(at_once, partial(train_with, common), words[:limit])
        for title, (common, words) in runs.items()
    }
    modes = ("eager", "default", "reduce_overhead") if HAS_CUDA else ("eager", "aot_eager")
    return {
        **tried,
        "killed and continued": partial(
            at_once, partial(kill_run, quick=quick), modes[: 1 if quick else None]
        ),
    }


def options(group: str) -> list[str]:
    """Return the options of a config group that this machine can run."""
    return [name for name in group_options()[group] if HAS_CUDA or name not in NEED_CUDA]


def train_with(common: Sequence[str], word: str) -> Iterator[Figure]:
    """Train with a word and yield the last loss."""
    with tempfile.TemporaryDirectory() as folder:
        loss, seconds = train((*common, word), Path(folder, "run"))
    yield Figure(word, loss, "", note=f"{seconds:.0f} s")


def kill_run(mode: str, *, quick: bool) -> Iterator[Figure]:
    """Kill a run, continue it, and count the files in which it differs from a run that was not killed."""
    from killing import run_with_kills

    words = (*KILLED, f"duration={400 if quick else 2000}", f"compile={mode}")
    with tempfile.TemporaryDirectory() as folder:
        result = run_with_kills(Path(folder), "run", words, 1 if quick else 2, random.Random(0))
    if not result["kills"]:
        raise RuntimeError("no run was killed before its end")
    note = f"{result['kills']} kills, {result['most_updates_lost']} updates repeated at most"
    names = ", ".join(result["differing"])
    yield Figure(f"{FILES}: compile={mode}", len(result["differing"]), "", "= 0", note, names)
