"""The share of the GPU's peak FLOP/s that training ViT-S/16, B/16 and L/16 uses (MFU).

The FLOPs of an update are three times those of the forward pass by torch's counter; recomputation does not count. They
are compared with the data sheet, and with products of two 8,192 x 8,192 matrices in bf16, which take turns with the
training.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.figures import Figure, Item
from benchmarks.report import Cell
from benchmarks.statistics import interval, paired
from benchmarks.turns import hydrant, profile, race
from benchmarks.vits import FAST, size
from hydrant.training.costs import peak_flops

PRODUCT = "a matrix product"

SHEET, OF_PRODUCT = "share of the data sheet's rate", "share of a matrix product's rate"
MODELS = {"vit_small_patch16_224": 512, "vit_base_patch16_224": 256, "vit_large_patch16_224": 128}
"""Batch sizes."""
GOALS = {
    f"vit_small_patch16_224: {SHEET}": ">= 0.25",
    f"vit_base_patch16_224: {SHEET}": ">= 0.4",
    f"vit_large_patch16_224: {SHEET}": ">= 0.45",
}
REMAINDER = (
    "No kernel reaches the data sheet's 989 TFLOP/s: a product of two 8,192 x 8,192 matrices reaches 662 on this "
    "machine, two thirds. Of that rate, ViT-B uses 55 % and ViT-L 65 %. In the profile of ViT-B, half of the time "
    "are the products of the linear layers and a tenth is attention; the rest are GELU, layer norms, sums and "
    "casts, which the memory's bandwidth limits and which count no FLOPs. Their share falls as the width grows."
)


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for each model."""
    return {name: partial(measure_model, name, quick=quick) for name in list(MODELS)[: 1 if quick else None]}


def measure_model(name: str, *, quick: bool) -> Iterator[Item]:
    """Measure a model's share of the data sheet's rate, and of the matrix product's."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    num_blocks, block_size = (2, 2) if quick else (7, 10)
    work = size(name, MODELS[name], quick=quick)
    seconds, results = race(
        {name: hydrant(*FAST, **work), PRODUCT: {"contender": "matmul", **work}},
        num_blocks=num_blocks, block_size=block_size, num_warmup=5,
    )  # fmt: skip
    flops = 3 * forward_flops(work) * work["batch_size"] * block_size
    product_flops, peak = results[PRODUCT]["flops"] * block_size, peak_flops(device)
    shares = paired(
        [flops / block for block in seconds[name]],
        [product_flops / block for block in seconds[PRODUCT]],
        lambda model, product: model / product,
    )
    rate = product_flops / median(seconds[PRODUCT]) / 1e12
    yield Figure(f"{name}: {OF_PRODUCT}", shares, "", note=f"{rate:.3g} TFLOP/s")
    is_met = None
    if peak is not None:
        what, note = f"{name}: {SHEET}", f"{peak / 1e12:.0f} TFLOP/s"
        share = Figure(
            what,
            interval([flops / block / peak for block in seconds[name]]),
            "",
            GOALS[what],
            note,
            REMAINDER,
        )
        is_met = share.is_met
        yield share
    if quick or is_met is False:
        yield profile(name, hydrant(*FAST, **work))


def forward_flops(work: dict[str, object]) -> int:
    """Return the FLOPs of the forward pass of one image."""
    with torch.device("meta"):
        model = timm.create_model(str(work["model"]), num_classes=1000, **work.get("arguments", {}))
        image = torch.empty(1, 3, work["image_size"], work["image_size"])
    with FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops()
