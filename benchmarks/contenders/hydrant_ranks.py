"""Hydrant: a run with DDP on ranks that `contenders.ranks` starts."""

from __future__ import annotations

from typing import Any

from benchmarks.contenders import ranks
from benchmarks.contenders.weights import digest
from hydrant import cli

SHAPE = f"input_shape: [{ranks.NUM_FEATURES}], num_classes: {ranks.NUM_CLASSES}"
WORDS = (
    f"data={{_target_: benchmarks.contenders.ranks.data, {SHAPE}}}",
    "model={_target_: benchmarks.contenders.ranks.model}", "allow_targets=[benchmarks]",
    f"global_batch_size={ranks.BATCH_SIZE * ranks.NUM_RANKS}", f"eval_batch_size={ranks.BATCH_SIZE}",
    f"duration={ranks.NUM_UPDATES}", "optimizer=adamw", "optimizer.fused=true", "scheduler=constant", "tracker=local",
    "log_every=null", "eval_every=null", "save_every=null", "name=run",
)  # fmt: skip


def train() -> dict[str, Any]:
    """Train on this rank and return the digest of the weights."""
    if status := cli.main(["train", *WORDS]):
        raise SystemExit(status)
    return {"digest": digest(ranks.NETWORK[0])}


ranks.run_on_all_ranks(train)
