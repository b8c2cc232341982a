"""Time that one update costs besides what the hand-written loop does, of Hydrant and of its peers."""

from __future__ import annotations

import argparse
import json
import sys
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
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--block-size", type=int, default=1000)
    asked = parser.parse_args()
    common = {"num_warmup": 500, "num_blocks": asked.blocks, "block_size": asked.block_size}
    settings = {title: {**CONTENDERS[title], **common} for title in ["by hand", *asked.only]}
    with tempfile.TemporaryDirectory() as folder:
        seconds, results = side_by_side(settings, asked.blocks, Path(folder))
    by_hand = seconds["by hand"]
    for title, own in seconds.items():
        scale = 1e6 / asked.block_size
        added = paired(own, by_hand, lambda a, b: (a - b) * scale)
        same = results[title]["digest"] == results["by hand"]["digest"]
        print(f"{title:<26} {added.median:8.1f} us added [{added.low:.1f}, {added.high:.1f}]  {'same weights' if same else 'other weights'}")
    json.dump({"seconds": seconds, "results": results}, sys.stderr)


if __name__ == "__main__":
    main()
