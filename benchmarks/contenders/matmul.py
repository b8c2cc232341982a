"""Products of two large square bf16 matrices, which take about as long as an update of a vision transformer."""

from __future__ import annotations

import torch

from benchmarks.contenders.work import DEVICE, TURNS

SIZE, NUM_PRODUCTS = (8192, 60) if DEVICE.type == "cuda" else (512, 1)


def main() -> None:
    # random, because products of constant matrices run faster
    one, other = (torch.randn(SIZE, SIZE, device=DEVICE).bfloat16() for _ in range(2))
    product = torch.empty_like(one)
    for _ in TURNS.over([None]):
        for _ in range(NUM_PRODUCTS):
            torch.mm(one, other, out=product)
    TURNS.end(flops=2 * SIZE**3 * NUM_PRODUCTS)


main()
