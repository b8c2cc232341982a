"""Gradient clipping equals torch's and timm's, and applies to unscaled gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from run_folders import weights
from timm.utils.agc import adaptive_clip_grad
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from training_runs import Train

from hydrant.optimizers.kernels import Clipping

SHORT = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=6")


def parameters_with_gradients() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, 3), (4,), (2, 4), (2,))
    parameters = [nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


@pytest.mark.parametrize(
    ("clipping", "reference"),
    [
        (Clipping(), lambda p: None),
        (Clipping(max_norm=0.5), lambda p: clip_grad_norm_(p, 0.5)),
        (Clipping(max_value=0.1), lambda p: clip_grad_value_(p, 0.1)),
        (
            Clipping(max_norm=0.5, max_value=0.1),
            lambda p: (clip_grad_norm_(p, 0.5), clip_grad_value_(p, 0.1)),
        ),
    ],
    ids=["none", "norm", "value", "both"],
)
def test_clipping_equals_torch(clipping: Clipping, reference: Callable[[Any], Any]) -> None:
    clipped, expected = parameters_with_gradients(), parameters_with_gradients()
    clipping(clipped, torch.nn.utils.get_total_norm([p.grad for p in clipped]))
    reference(expected)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(clipped, expected, strict=True))


def test_adaptive_clipping_equals_timm_and_spares_the_head_in_any_order() -> None:
    clipped, expected = parameters_with_gradients(), parameters_with_gradients()
    Clipping(agc=0.02, head=frozenset(map(id, clipped[-2:])))(clipped[::-1], None)
    adaptive_clip_grad(expected[:-2], 0.02)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(clipped, expected, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_unscaled_gradients_are_clipped(precision: str, train: Train) -> None:
    """One update of plain SGD with lr 1 moves no weight further than the limit."""
    base = (*SHORT, "optimizer=sgd", "optimizer.lr=1", "optimizer.momentum=0", f"precision={precision}",
            "scheduler=constant", "duration=2", "save_every=1", "keep_last=9", "max_grad_value=1e-4")  # fmt: skip
    folder = train(*base)
    one, other = (weights(folder, f"update_0000000{n}") for n in (1, 2))
    moved = max(float((one[name] - other[name]).abs().max()) for name in one)
    assert moved == pytest.approx(1e-4, rel=1e-2)
