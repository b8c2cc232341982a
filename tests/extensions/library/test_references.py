"""Optimizers of pytorch_optimizer equal the formulas of their papers, or the authors' own code, over 50 updates."""

import math

import pytest
import schedulefree
import torch
from configs import optimizer_node
from optimizer_references import SIDE, Case, Updates, check_case, orthogonal, trained
from torch import Tensor

from hydrant.config.instantiate import instantiate_node


def soap(w: Tensor, steps: Updates) -> Tensor:
    """Vyas et al., 2024, algorithm 3. The first gradient only initialises the bases."""
    beta1, beta2, frequency = 0.95, 0.95, 10
    gradient, _ = next(steps)
    sides = [0.05 * gradient @ gradient.T, 0.05 * gradient.T @ gradient]
    left, right = (torch.linalg.eigh(side)[1].flip(1) for side in sides)
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, (gradient, lr) in enumerate(steps, 1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * (left.T @ gradient @ right) ** 2
        direction = left @ ((left.T @ m @ right) / (v.sqrt() + 1e-8)) @ right.T
        w = w - lr * math.sqrt(1 - beta2**t) / (1 - beta1**t) * direction
        w = w - lr * 0.01 * w
        sides[0] = beta2 * sides[0] + (1 - beta2) * gradient @ gradient.T
        sides[1] = beta2 * sides[1] + (1 - beta2) * gradient.T @ gradient
        if t % frequency == 0:
            order_l, left = power_iteration(sides[0], left)
            order_r, right = power_iteration(sides[1], right)
            v = v[order_l][:, order_r]
    return w


def power_iteration(side: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    product = side @ basis
    order = (basis * product).sum(0).argsort(descending=True)
    return order, torch.linalg.qr(product[:, order])[0]


def ademamix(w: Tensor, steps: Updates) -> Tensor:
    """Pagliardini et al., 2024, algorithm 1."""
    beta1, beta2, beta3, alpha, rise = 0.9, 0.999, 0.9999, 5.0, 40
    m1, m2, v = (torch.zeros_like(w) for _ in range(3))
    for t, (gradient, lr) in enumerate(steps, 1):
        log1, log3, x = math.log(beta1), math.log(beta3), t / rise
        beta3_t = min(math.exp(log1 * log3 / ((1 - x) * log3 + x * log1)), beta3)
        m1 = beta1 * m1 + (1 - beta1) * gradient
        m2 = beta3_t * m2 + (1 - beta3_t) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        mixed = m1 / (1 - beta1**t) + min(t * alpha / rise, alpha) * m2
        w = w - lr * (mixed / ((v / (1 - beta2**t)).sqrt() + 1e-8) + 0.01 * w)
    return w


def prodigy(w: Tensor, steps: Updates) -> Tensor:
    """Mishchenko & Defazio, 2024, algorithm 4."""
    beta1, beta2, d0 = 0.9, 0.999, 1e-6
    w0, m, v, s, r, d = w, torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w), 0.0, d0
    for gradient, lr in steps:
        m = beta1 * m + (1 - beta1) * d * gradient
        v = beta2 * v + (1 - beta2) * d**2 * gradient**2
        r = math.sqrt(beta2) * r + lr * d**2 / d0 * float((gradient * (w0 - w)).sum())
        s = math.sqrt(beta2) * s + lr * d**2 / d0 * gradient
        previous, d = d, max(d, r / float(s.abs().sum()))
        w = w - lr * previous * m / (v.sqrt() + d * 1e-8)
    return w


def shampoo(w: Tensor, steps: Updates) -> Tensor:
    """Gupta et al., 2018, algorithm 1."""
    sides = [1e-4 * torch.eye(SIDE, dtype=torch.float64) for _ in range(2)]
    for gradient, lr in steps:
        sides = [sides[0] + gradient @ gradient.T, sides[1] + gradient.T @ gradient]
        left, right = (q @ (e**-0.25).diag() @ q.T for e, q in map(torch.linalg.eigh, sides))
        w = w - lr * left @ gradient @ right
    return w


def scion(w: Tensor, steps: Updates) -> Tensor:
    """Pethick et al., 2025, algorithm 1, with the spectral norm."""
    d = torch.zeros_like(w)
    for gradient, lr in steps:
        d = 0.9 * d + 0.1 * gradient
        w = w - lr * 50 * math.sqrt(w.shape[0] / w.shape[1]) * orthogonal(d)
    return w


def test_schedule_free_adamw_equals_its_authors_package() -> None:
    option = instantiate_node(optimizer_node("schedule_free_adamw", "optimizer.weight_decay=0.1"))
    shape, lr = (4, 3), 2.5e-3
    expected = trained(lambda groups: schedulefree.AdamWScheduleFree(groups, weight_decay=0.1), shape, lr)
    torch.testing.assert_close(trained(option, shape, lr), expected, rtol=0, atol=1e-12)


CASES: dict[str, Case] = {
    "soap": (soap, 3e-3, (), 1e-5),
    "ademamix": (ademamix, 1e-3, ("optimizer.t_alpha_beta3=40",), 1e-9),
    "prodigy": (prodigy, 1.0, (), 1e-4),  # it adds the terms of its estimate in float32
    "shampoo": (shampoo, 0.1, (), 1e-9),
    "scion": (scion, 2.5e-4, (), 0.02),  # it multiplies in bfloat16
}


@pytest.mark.parametrize("option", CASES)
def test_an_option_equals_the_formula_of_its_paper(option: str) -> None:
    check_case(option, CASES[option])
