"""Optimizers equal the formulas of their papers over 50 updates: written in float64, or the authors' own code."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import schedulefree
import torch
from configs import optimizer_node
from torch import Tensor, nn

from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError
from hydrant.optimizers.matrices import COEFFICIENTS

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


def mars(w: Tensor, steps: Updates) -> Tensor:
    """Yuan et al., 2024, algorithm 2 with the last gradient as the approximation."""
    beta1, beta2, gamma = 0.95, 0.99, 0.025
    m, v, last = torch.zeros_like(w), torch.zeros_like(w), None
    for t, (gradient, lr) in enumerate(steps, 1):
        c = gradient + gamma * beta1 / (1 - beta1) * (gradient - (gradient if last is None else last))
        c, last = c / max(1.0, float(c.norm())), gradient
        m = beta1 * m + (1 - beta1) * c
        v = beta2 * v + (1 - beta2) * c**2
        w = w - lr * (m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + 1e-8) + 0.01 * w)
    return w


def shampoo(w: Tensor, steps: Updates) -> Tensor:
    """Gupta et al., 2018, algorithm 1."""
    sides = [1e-4 * torch.eye(SIDE, dtype=torch.float64) for _ in range(2)]
    for gradient, lr in steps:
        sides = [sides[0] + gradient @ gradient.T, sides[1] + gradient.T @ gradient]
        left, right = (q @ (e**-0.25).diag() @ q.T for e, q in map(torch.linalg.eigh, sides))
        w = w - lr * left @ gradient @ right
    return w


Coefficients = Sequence[tuple[float, float, float]]
FIXED: Coefficients = COEFFICIENTS["original"] * 5
POLAR_EXPRESS: Coefficients = COEFFICIENTS["polar_express"][:5]
QUINTIC: Coefficients = [
    (4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]  # fmt: skip


def orthogonal(matrix: Tensor, coefficients: Coefficients = FIXED) -> Tensor:
    """Jordan et al., "Muon", 2024: five iterations; with `POLAR_EXPRESS`, Amsel et al., 2025."""
    x = matrix / matrix.norm()
    for a, b, c in coefficients:
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


def scion(w: Tensor, steps: Updates) -> Tensor:
    """Pethick et al., 2025, algorithm 1, with the spectral norm."""
    d = torch.zeros_like(w)
    for gradient, lr in steps:
        d = 0.9 * d + 0.1 * gradient
        w = w - lr * 50 * math.sqrt(w.shape[0] / w.shape[1]) * orthogonal(d)
    return w


def muon(
    coefficients: Coefficients, scale: Callable[[int, int], float]
) -> Callable[[Tensor, Updates], Tensor]:
    """Jordan et al., 2024, with timm's momentum of 0.9 and decoupled weight decay; `scale` of m rows and n columns."""

    def reference(w: Tensor, steps: Updates) -> Tensor:
        m = torch.zeros_like(w)
        for gradient, lr in steps:
            m = 0.9 * m + 0.1 * gradient
            o = orthogonal(m, coefficients)
            w = w - lr * 0.01 * w - lr * scale(*w.shape) * o
        return w

    return reference


def normuon(w: Tensor, steps: Updates) -> Tensor:
    """Li et al., 2025, algorithm 1, with Nesterov's momentum as in the authors' code."""
    m, v = torch.zeros_like(w), torch.zeros(len(w), 1, dtype=w.dtype)
    for gradient, lr in steps:
        m = 0.95 * m + 0.05 * gradient
        o = orthogonal(0.05 * gradient + 0.95 * m)
        v = 0.95 * v + 0.05 * (o**2).mean(1, keepdim=True)
        o = o / v.sqrt()
        w = w - lr * 0.01 * w - lr * 0.2 * math.sqrt(w.numel()) * o / o.norm()
    return w


def kron(w: Tensor, steps: Updates) -> Tensor:
    """Pooladzandi & Li, 2024, with triangular factors, and the norms and bounds of the authors' code."""
    draw, tiny = random.Random(1337), torch.finfo(torch.bfloat16).tiny
    q1, q2 = (torch.eye(SIDE, dtype=w.dtype) for _ in range(2))
    m = torch.zeros_like(w)
    for t, (gradient, lr) in enumerate(steps, 1):
        m = 0.9 * m + 0.1 * gradient
        g = m / (1 - 0.9**t)
        if draw.random() < 0.01:  # balance the factors
            scale = (q1.abs().max() * q2.abs().max()).sqrt()
            q1, q2 = q1 * (scale / q1.abs().max()), q2 * (scale / q2.abs().max())
        noise_generator = torch.Generator().manual_seed(draw.randint(0, 2**31))
        noise = torch.randn(g.shape, generator=noise_generator, dtype=w.dtype)
        a, b = q1 @ g @ q2.T, torch.linalg.inv(q1).T @ noise @ torch.linalg.inv(q2)
        q1, q2 = (
            q - 0.1 * (one - two).triu() / (lower_bound(one + two) + tiny) @ q
            for q, one, two in ((q1, a @ a.T, b @ b.T), (q2, a.T @ a, b.T @ b))
        )
        direction = q1.T @ q1 @ g @ q2.T @ q2
        direction = direction * min(1.1 / (float(direction.square().mean().sqrt()) + 1e-8), 1.0)
        w = w * (1 - lr * 0.01) - lr * direction
    return w


def lower_bound(a: Tensor) -> Tensor:
    """A bound of the spectral norm of a symmetric matrix."""
    largest = a.abs().max()
    a = a / largest
    value, place = (a.abs() ** 2).sum(0).max(0)
    x = a[:, place] @ a
    return (x / x.norm() @ a.T).norm() * largest if value > 0 else largest


CASES: dict[str, tuple[Callable[[Tensor, Updates], Tensor], float, tuple[str, ...], float]] = {
    "soap": (soap, 3e-3, (), 1e-5),
    "ademamix": (ademamix, 1e-3, ("optimizer.t_alpha_beta3=40",), 1e-9),
    "prodigy": (prodigy, 1.0, (), 1e-4),  # it adds the terms of its estimate in float32
    "mars": (mars, 3e-3, (), 1e-9),
    "shampoo": (shampoo, 0.1, (), 1e-9),
    "scion": (scion, 2.5e-4, (), 0.02),  # it multiplies in bfloat16, as do the following
    "normuon": (normuon, 2e-3, (), 0.02),
    "kron": (kron, 3e-4, (), 1e-4),  # it solves in float32
}


MUON: dict[str, tuple[Coefficients, Callable[[int, int], float]]] = {
    "ns_coefficients=quintic adjust_lr_fn=match_rms_adamw": (QUINTIC, lambda m, n: 0.2 * max(m, n) ** 0.5),
    "ns_coefficients=polar_express adjust_lr_fn=original": (POLAR_EXPRESS, lambda m, n: max(1, m / n) ** 0.5),
    "ns_coefficients=original adjust_lr_fn=rms_to_rms": (FIXED, lambda m, n: (m / n) ** 0.5),
}


@pytest.mark.parametrize("settings", MUON)
@pytest.mark.parametrize("shape", [(5, 5), (8, 5), (5, 8)])
def test_muon_equals_the_formula_with_all_coefficients_and_scales(
    settings: str, shape: tuple[int, int]
) -> None:
    """It multiplies in bfloat16. The first settings are the defaults."""
    words = [f"+optimizer.kwargs.{word}" for word in settings.split()]
    node = optimizer_node("muon", *([] if settings == next(iter(MUON)) else words))
    weight_decay = {"weight_decay": 0.01}
    actual = trained(instantiate_node(node | weight_decay), shape, 2e-3)
    expected = muon(*MUON[settings])(start(shape), updates(shape, 2e-3))
    moved = float((expected - start(shape)).norm())
    assert moved > 1e-3
    assert float((actual - expected).norm()) < 0.02 * moved


@pytest.mark.parametrize("option", CASES)
def test_an_option_equals_the_formula_of_its_paper(option: str) -> None:
    reference, lr, words, tolerance = CASES[option]
    shape = (SIDE, SIDE)
    node = optimizer_node(option, *words)
    assert node["lr"] == lr
    with torch.compiler.set_stance("force_eager"):  # kron compiles its update
        actual = trained(instantiate_node(node), shape, lr)
    expected = reference(start(shape), updates(shape, lr))
    moved = float((expected - start(shape)).norm())
    assert moved > 1e-3
    assert float((actual - expected).norm()) < tolerance * moved


def test_schedule_free_adamw_equals_its_authors_package() -> None:
    option = instantiate_node(optimizer_node("schedule_free_adamw", "optimizer.weight_decay=0.1"))
    shape, lr = (4, 3), 2.5e-3
    expected = trained(lambda groups: schedulefree.AdamWScheduleFree(groups, weight_decay=0.1), shape, lr)
    torch.testing.assert_close(trained(option, shape, lr), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("adaptive", [False, True])
def test_sam_uses_the_gradient_of_a_point_nearby(adaptive: bool) -> None:
    """Foret et al., 2021, algorithm 1; Kwon et al., 2021, algorithm 1 without the term for weights of 0."""
    shape, lr, rho = (4, 3), 0.1, 0.05
    weight = nn.Parameter(start(shape))
    option = instantiate_node(
        optimizer_node("sam", "optimizer.base.momentum=0.5", f"optimizer.adaptive={adaptive}")
    )
    optimizer = option([{"params": [weight]}])
    curvature = torch.arange(1, 13, dtype=torch.float64).view(shape) / 12
    expected, momentum = start(shape), torch.zeros(shape, dtype=torch.float64)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (curvature * weight**4).sum() / 4
        loss.backward()
        return loss

    for n in range(UPDATES):
        for group in optimizer.param_groups:
            group["lr"] = lr / (n + 1)
        loss = optimizer.step(closure)
        torch.testing.assert_close(loss, (curvature * expected**4).sum() / 4)
        gradient, size = curvature * expected**3, expected.abs() if adaptive else torch.ones_like(expected)
        nearby = expected + rho * size**2 * gradient / (size * gradient).norm()
        momentum = 0.5 * momentum + curvature * nearby**3
        expected = expected - lr / (n + 1) * momentum
        torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-9)


def test_sam_refuses_a_base_that_evaluates_the_loss() -> None:
    option = instantiate_node(optimizer_node("sam", "optimizer@optimizer.base=lbfgs"))
    with pytest.raises(ConfigError, match="LBFGS evaluates the loss"):
        option([nn.Parameter(start((2, 2)))])
