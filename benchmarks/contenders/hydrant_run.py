"""Hydrant: a run by its config, as from the command line."""

from __future__ import annotations

from benchmarks.contenders.hydrant_parts import NETWORK
from benchmarks.contenders.work import LR, SETTINGS, TURNS, digest
from hydrant import cli

PLAIN = (
    "data={_target_: benchmarks.contenders.hydrant_parts.data, input_shape: [32], num_classes: 10}",
    "model={_target_: benchmarks.contenders.hydrant_parts.model}", "allow_targets=[benchmarks]",
    "global_batch_size=8", "eval_batch_size=8", "optimizer=adamw", f"optimizer.lr={LR}", "optimizer.weight_decay=0.01",
    "scheduler=constant", "eval_every=null", "save_every=null", "name=run", f"duration={TURNS.num_updates}",
)  # fmt: skip


def main() -> None:
    status = cli.main(["train", *PLAIN, *SETTINGS["words"]])
    if status:
        raise SystemExit(status)
    TURNS.end(digest=digest(NETWORK[0]))


main()
