"""Optimizers equal the formulas of their papers over 50 updates: written in float64, or the authors' own code."""

import math
import random
from collections.abc import Callable

import optimizer_references
import pytest
import torch
from configs import optimizer_node
from optimizer_references import FIXED, SIDE, Case, Coefficients, Updates, orthogonal, start, trained, updates
from torch import Tensor, nn

from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError
from hydrant.extensions.optimizers import COEFFICIENTS


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


POLAR_EXPRESS: Coefficients = COEFFICIENTS["polar_express"][:5]
QUINTIC: Coefficients = [
    (4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]  # fmt: skip


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


CASES: dict[str, Case] = {
    "mars": (mars, 3e-3, (), 1e-9),
    "normuon": (normuon, 2e-3, (), 0.02),  # it multiplies in bfloat16
    "kron": (kron, 3e-4, (), 1e-4),  # it solves in float32
}


MUON: dict[str, tuple[Coefficients, Callable[[int, int], float]]] = {
    "ns_coefficients=quintic adjust_lr_fn=match_rms_adamw": (QUINTIC, lambda m, n: 0.2 * max(m, n) ** 0.5),
    "ns_coefficients=polar_express adjust_lr_fn=original": (POLAR_EXPRESS, lambda m, n: max(1, m / n) ** 0.5),
    "ns_coefficients=original adjust_lr_fn=rms_to_rms": (FIXED, lambda m, n: (m / n) ** 0.5),
}


@pytest.mark.parametrize("settings", MUON)
@pytest.mark.parametrize("shape", [(5, 5), (8, 5), (5, 8)])
def test_muon_equals_formula_with_all_coefficients_and_scales(settings: str, shape: tuple[int, int]) -> None:
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
    optimizer_references.check_case(option, CASES[option])


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

    for n in range(optimizer_references.UPDATES):
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
