"""Sizes and contenders of the trainings of vision transformers on a GPU."""

from __future__ import annotations

from typing import Any

FAST = ("precision=bf16", "compile=default", "optimizer.fused=true", "tracker=local", "log_every=null")


def size(model: str, batch_size: int, *, quick: bool) -> dict[str, Any]:
    """A model of timm on images of 224 pixels; `quick`, the smallest of its kind on images of 32."""
    if not quick:
        return {"model": model, "batch_size": batch_size, "image_size": 224}
    small = {"img_size": 32, "patch_size": 16, "depth": 1, "embed_dim": 48, "num_heads": 3}
    return {"model": model, "batch_size": 2, "image_size": 32, "arguments": small}


def ours(*words: str) -> dict[str, Any]:
    """Hydrant with these words."""
    return {"contender": "hydrant_run", "features": False, "words": words}
