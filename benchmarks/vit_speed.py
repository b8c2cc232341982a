"""A ViT-B/16 on one GPU, batches of 256 images of 224 pixels, beside other precisions, the loop by hand and timm.

Random images that stay on the GPU, AdamW. Hydrant: bf16 autocast, the model compiled with its loss, the fused update.
The eager loops are written by hand, with torch's default (foreach) update; the one in bf16 that is compiled has the
fused update, as Hydrant has. timm is the loop of its training script with `--amp --torchcompile`.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.statistics import paired
from benchmarks.turns import race
from benchmarks.vits import FAST, ours, size

HAND = {"contender": "vit_by_hand", "compile": False, "fused": False}
ROUNDS = (  # all at once would not fit into the memory of one GPU
    {
        "the loop by hand, compiled": HAND | {"precision": "bf16", "compile": True, "fused": True},
        "timm's script, compiled": {"contender": "vit_timm"},
    },
    {
        "eager fp32": HAND | {"precision": "fp32"},
        "eager TF32": HAND | {"precision": "tf32"},
        "eager bf16": HAND | {"precision": "bf16"},
    },
)
GOALS = {
    "eager fp32": ">= 6", "eager TF32": ">= 2.5", "eager bf16": ">= 1.2", "the loop by hand, compiled": ">= 0.995",
    "timm's script, compiled": ">= 1.2",
}  # fmt: skip


def measure(*, quick: bool) -> list[Figure]:
    """How many times as fast as each of them Hydrant is."""
    work = size("vit_base_patch16_224", 256, quick=quick)
    num_blocks, block_size = (2, 2) if quick else (7, 10)
    figures = list[Figure]()
    for contenders in ROUNDS:
        racing = {"Hydrant": ours(*FAST), **contenders}
        seconds, results = race(
            {title: {**own, **work} for title, own in racing.items()},
            num_blocks=num_blocks, block_size=block_size, num_warmup=5,
        )  # fmt: skip
        rate = paired(
            seconds["Hydrant"], seconds["Hydrant"], lambda own, _: block_size * work["batch_size"] / own
        )
        figures.append(Figure("Hydrant", rate, "images/s"))
        for title in contenders:
            ratio = paired(seconds[title], seconds["Hydrant"], lambda theirs, own: theirs / own)
            is_same = results[title]["digest"] == results["Hydrant"]["digest"]
            note = "the same weights, bit for bit" if is_same else "other weights: other arithmetic"
            figures.append(Figure(f"faster than {title}", ratio, "x", GOALS[title], note))
    return figures
