"""Settings of the vision transformer benchmarks on a GPU."""

from __future__ import annotations

from typing import Any

FAST = ("precision=bf16", "compile=default", "optimizer.fused=true", "tracker=local", "log_every=null")


def size(model: str, batch_size: int, *, quick: bool) -> dict[str, Any]:
    """Return the settings of a timm model on images of 224 pixels; if `quick`, of a tiny one on images of 32."""
    if not quick:
        return {"model": model, "batch_size": batch_size, "image_size": 224}
    small = {"img_size": 32, "patch_size": 16, "depth": 1, "embed_dim": 48, "num_heads": 3}
    return {"model": model, "batch_size": 2, "image_size": 32, "arguments": small}
