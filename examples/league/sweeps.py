"""Train the league: tune each optimizer with the same learning rates, then train its best one with fresh seeds."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import hydrant


@dataclass(frozen=True)
class Model:
    """A problem of the league.

    Args:
        name: of its sweeps.
        title: what it is, for the page.
        words: the overrides that choose it.
        tuning_seeds: the seeds with which every learning rate is tried.
        fresh_seeds: the seeds that tune nothing, for the best learning rate.
    """

    name: str
    title: str
    words: tuple[str, ...]
    tuning_seeds: tuple[int, ...]
    fresh_seeds: tuple[int, ...]


_FIVE = (10, 11, 12, 13, 14)
MODELS = (
    Model("mlp", "MLP on digits", (), (0, 1), _FIVE),
    Model("convnet", "ConvNet on digits", ("model=convnet", "duration=5ep"), (0, 1), _FIVE),
    Model(
        "vit",
        "small ViT on digits",
        (
            "model=timm",
            "model.name=vit_tiny_patch16_224",
            "duration=5ep",
            "+model.kwargs={img_size: 8, patch_size: 2, embed_dim: 32, depth: 2, num_heads: 2}",
        ),
        (0,),
        _FIVE,
    ),
    Model(
        "gpt",
        "small GPT on documentation strings",
        (
            "data=tokens", "data.sequence_length=64", "model=gpt", "model.num_layers=2", "model.width=64",
            "model.num_heads=2", "task=language_modeling", "global_batch_size=16", "limit_val_samples=128",
            "duration=100", "eval_every=50",
        ),
        (0,),
        _FIVE,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A run of the league. `loss`: the lowest val/loss of its evaluations; infinite if it failed."""

    optimizer: str
    lr: float
    seed: int
    loss: float


def tuning_words(model: Model) -> list[str]:
    """Return the words of `python train.py` that try all learning rates."""
    seeds = ",".join(map(str, model.tuning_seeds))
    return _words(f"league_{model.name}", (*model.words, f"seed={seeds}"))


def fresh_words(model: Model, optimizers: Iterable[str], lr: object) -> list[str]:
    """Return the words that train optimizers at their best learning rate with fresh seeds."""
    chosen = (
        f"optimizer={','.join(optimizers)}",
        f"optimizer.lr={lr}",
        f"seed={','.join(map(str, model.fresh_seeds))}",
    )
    return _words(f"league_{model.name}_fresh", (*model.words, *chosen))


def _words(name: str, words: Sequence[str]) -> list[str]:
    return ["--multirun", "experiment=optimizer_league", f"name={name}", "tracker=local", *words]


def read(folder: Path) -> list[Row]:
    """Return the runs of a sweep."""
    table = hydrant.load_runs(folder)
    columns = (
        table["optimizer"],
        table["optimizer.lr"],
        table["seed"],
        table["best val/loss"],
        table["status"],
    )
    return [
        Row(str(optimizer), float(lr), int(seed), float(loss) if status == "finished" else math.inf)
        for optimizer, lr, seed, loss, status in zip(*columns, strict=True)
    ]


def best_rates(rows: Iterable[Row]) -> dict[str, float]:
    """Return the learning rate of each optimizer with the lowest mean loss over the seeds."""
    losses = defaultdict[tuple[str, float], list[float]](list)
    for row in rows:
        losses[row.optimizer, row.lr].append(row.loss)
    best: dict[str, float] = {}
    for (optimizer, lr), values in sorted(losses.items()):
        if optimizer not in best or fmean(values) < fmean(losses[optimizer, best[optimizer]]):
            best[optimizer] = lr
    return best


def train(model: Model) -> None:
    """Run both sweeps of a model. What has run is not run again."""
    _run(tuning_words(model))
    by_rate = defaultdict[float, list[str]](list)
    for optimizer, lr in best_rates(read(Path("multirun", f"league_{model.name}"))).items():
        by_rate[lr].append(optimizer)
    for lr, optimizers in sorted(by_rate.items()):
        _run(fresh_words(model, optimizers, lr))


def _run(words: Sequence[str]) -> None:
    command = [sys.executable, "train.py", *words]
    print(shlex.join(command), flush=True)
    # kron would compile its update for half a minute in each run.
    subprocess.run(command, check=False, env=os.environ | {"TORCHDYNAMO_DISABLE": "1"})


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        train(next(model for model in MODELS if model.name == chosen))
