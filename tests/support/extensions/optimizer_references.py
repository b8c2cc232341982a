"""Updates of a weight, by an optimizer and by the formula of its paper."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from configs import optimizer_node
from torch import Tensor, nn

from hydrant.config.instantiate import instantiate_node
from hydrant.extensions.optimizers import COEFFICIENTS

UPDATES = 50


SIDE = 5  # a square matrix: its preconditioners have no null space, whose basis is arbitrary


Updates = Iterator[tuple[Tensor, float]]  # of a gradient (float64) and the lr


def updates(shape: tuple[int, ...], lr: float) -> Updates:
    for n in range(UPDATES):
        generator = torch.Generator().manual_seed(n)
        gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield 0.3 * gradient + torch.linspace(-1, 1, gradient.numel()).view(shape), lr * (1 - n / UPDATES)


def start(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(UPDATES), dtype=torch.float64)


def trained(make: Callable[[Any], Any], shape: tuple[int, ...], lr: float) -> Tensor:
    """Return a float64 weight after the updates of an optimizer."""
    weight = nn.Parameter(start(shape))
    optimizer = make([{"params": [weight]}])
    for gradient, rate in updates(shape, lr):
        if hasattr(optimizer, "train"):
            optimizer.train()
        for group in optimizer.param_groups:
            group["lr"] = rate
        weight.grad = gradient.clone()
        optimizer.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    return weight.detach()


Coefficients = Sequence[tuple[float, float, float]]


FIXED: Coefficients = COEFFICIENTS["original"] * 5


def orthogonal(matrix: Tensor, coefficients: Coefficients = FIXED) -> Tensor:
    """Jordan et al., "Muon", 2024: five iterations; with `POLAR_EXPRESS`, Amsel et al., 2025."""
    x = matrix / matrix.norm()
    for a, b, c in coefficients:
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


Case = tuple[Callable[[Tensor, Updates], Tensor], float, tuple[str, ...], float]
"""The formula of a paper, the lr of the option, its other words, and how far both may be apart, of the way."""


def check_case(option: str, case: Case) -> None:
    """Check that the option of an optimizer equals the formula of its paper."""
    reference, lr, words, tolerance = case
    shape = (SIDE, SIDE)
    node = optimizer_node(option, *words)
    assert node["lr"] == lr
    with torch.compiler.set_stance("force_eager"):  # kron compiles its update
        actual = trained(instantiate_node(node), shape, lr)
    expected = reference(start(shape), updates(shape, lr))
    moved = float((expected - start(shape)).norm())
    assert moved > 1e-3
    assert float((actual - expected).norm()) < tolerance * moved
