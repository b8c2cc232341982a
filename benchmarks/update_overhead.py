"""Time that one update costs besides what the hand-written loop does, of Hydrant and of its peers."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.statistics import paired
from benchmarks.turns import side_by_side

BARE = ("tracker=local", "log_every=null")
FULL = ("scheduler=cosine", "max_grad_norm=1.0", "log_every=50", "tracker=wandb", "tracker.mode=offline")
CONTENDERS: dict[str, dict[str, Any]] = {
    "by hand": {"contender": "by_hand"},
    "Hydrant, bare": {"contender": "hydrant_run", "words": (*BARE, "optimizer.fused=true")},
    "Hydrant, full": {"contender": "hydrant_run", "words": (*FULL, "optimizer.fused=true")},
    "Lightning Trainer": {"contender": "lightning_trainer", "features": False},
    "Lightning Trainer, full": {"contender": "lightning_trainer", "features": True},
    "Lightning Fabric": {"contender": "fabric"},
    "Accelerate": {"contender": "accelerate"},
    "pytorch-accelerated": {"contender": "pytorch_accelerated"},
    "HF Trainer": {"contender": "hf_trainer"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="these contenders")
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--block-size", type=int, default=1000, help="updates of a block")
    parser.add_argument("--output", type=Path, help="a JSON file with every block")
    asked = parser.parse_args()
    common = {"num_warmup": 500, "num_blocks": asked.blocks, "block_size": asked.block_size}
    settings = {title: {**CONTENDERS[title], **common} for title in ["by hand", *asked.only]}
    with tempfile.TemporaryDirectory() as folder:
        seconds, results = side_by_side(settings, asked.blocks, Path(folder))
    scale = 1e6 / asked.block_size
    for title, own in seconds.items():
        added = paired(own, seconds["by hand"], lambda mine, theirs: (mine - theirs) * scale)
        is_same = results[title]["digest"] == results["by hand"]["digest"]
        told = "same weights" if is_same else "other weights"
        print(f"{title:<26} {added.median:8.1f} us added [{added.low:.1f}, {added.high:.1f}]  {told}")
    if asked.output is not None:
        found = {"block_size": asked.block_size, "seconds": seconds, "results": results}
        asked.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
