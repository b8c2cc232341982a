"""The share of the GPU's peak FLOP/s that training ViT-S/16, B/16 and L/16 uses (MFU).

The FLOPs of an update are three times those of the forward pass by torch's counter; recomputation does not count. They
are compared with the data sheet, and with products of two 8,192 x 8,192 matrices in bf16, which take turns with the
training.
"""

from __future__ import annotations

from statistics import median

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import hydrant, race
from benchmarks.vits import FAST, size
from hydrant.training.profiling import peak_flops

PRODUCT = "a matrix product"

MODELS = {  # batch size, goals of both shares
    "vit_small_patch16_224": (512, ">= 0.3", ">= 0.42"),
    "vit_base_patch16_224": (256, ">= 0.4", ">= 0.55"),
    "vit_large_patch16_224": (128, ">= 0.45", ">= 0.62"),
}


def measure(*, quick: bool) -> list[Figure]:
    """Measure each model's share of the data sheet's rate, and of the matrix product's."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    num_blocks, block_size = (2, 2) if quick else (7, 10)
    figures = list[Figure]()
    for name, (batch_size, of_sheet, of_product) in MODELS.items():
        work = size(name, batch_size, quick=quick)
        seconds, results = race(
            {name: hydrant(*FAST, **work), PRODUCT: {"contender": "matmul", **work}},
            num_blocks=num_blocks, block_size=block_size, num_warmup=5,
        )  # fmt: skip
        flops = 3 * forward_flops(work) * work["batch_size"] * block_size
        product_flops, peak = results[PRODUCT]["flops"] * block_size, peak_flops(device)
        training = [flops / block for block in seconds[name]]
        products = [product_flops / block for block in seconds[PRODUCT]]
        if peak is not None:
            title = f"{name}: of the data sheet's {peak / 1e12:.0f} TFLOP/s"
            figures.append(Figure(title, interval([rate / peak for rate in training]), "", of_sheet))
        shares = paired(training, products, lambda model, product: model / product)
        rate = median(products) / 1e12
        figures.append(Figure(f"{name}: of a matrix product's {rate:.3g} TFLOP/s", shares, "", of_product))
    return figures


def forward_flops(work: dict[str, object]) -> int:
    """Return the FLOPs of the forward pass of one image."""
    with torch.device("meta"):
        model = timm.create_model(str(work["model"]), num_classes=1000, **work.get("arguments", {}))
        image = torch.empty(1, 3, work["image_size"], work["image_size"])
    with FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops()
