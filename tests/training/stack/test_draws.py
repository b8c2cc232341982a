"""Recorded draws give the numbers of the call again, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.training.stack.draws import RecordDraws, ReplayDraws

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of everything": lambda x: F.dropout(x, 1.0),
    "dropout in place": lambda x: F.dropout(x.clone(), 0.5, inplace=True),
    "channel dropout": lambda x: F.dropout2d(x, 0.4),
    "rand": lambda x: torch.rand(*x.shape, dtype=x.dtype),
    "randn_like": torch.randn_like,
    "bernoulli": lambda x: torch.empty_like(x).bernoulli_(0.7),
    "normal": lambda x: torch.empty_like(x).normal_(0, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_those_of_the_call(
    name: str, memory_format: torch.memory_format, dtype: torch.dtype
) -> None:
    call = CALLS[name]
    ones = torch.ones(3, 5, 4, 7, dtype=dtype).contiguous(memory_format=memory_format)
    torch.manual_seed(1)
    with RecordDraws() as recorded:
        call(ones)
    torch.manual_seed(2)
    expected, after = call(ones), torch.get_rng_state()
    torch.manual_seed(2)
    (draw,) = recorded.draws
    drawn = torch.full(draw.like.shape, 9.0, dtype=draw.like.dtype)
    draw.fill(drawn)
    assert torch.equal(drawn, expected)  # what multiplies ones
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dropout_on_cuda_is_that_of_the_call(dtype: torch.dtype) -> None:
    inputs = torch.randn(64, 48, device="cuda").to(dtype).requires_grad_()
    cotangent = torch.randn(64, 48, device="cuda").to(dtype)
    torch.manual_seed(1)
    expected = F.dropout(inputs, 0.1)
    expected.backward(cotangent)
    gradient, inputs.grad = inputs.grad, None
    with RecordDraws() as recorded:
        F.dropout(inputs, 0.1)
    torch.manual_seed(1)
    (draw,) = recorded.draws
    factors = draw.empty()
    draw.fill(factors)
    assert factors.max().item() == pytest.approx(1 / 0.9, rel=1e-6)  # 1.109375 in bfloat16
    with ReplayDraws([factors]):
        replayed = F.dropout(inputs, 0.1)
    replayed.backward(cotangent)
    assert torch.equal(replayed, expected)
    assert isinstance(inputs.grad, Tensor)
    assert isinstance(gradient, Tensor)
    assert torch.equal(inputs.grad, gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dropout_on_the_cpu_is_that_of_the_call(dtype: torch.dtype) -> None:
    inputs = torch.randn(64, 48).to(dtype)
    with RecordDraws() as recorded:
        F.dropout(inputs, 0.1)
    torch.manual_seed(1)
    expected = F.dropout(inputs, 0.1)
    torch.manual_seed(1)
    factors = recorded.draws[0].empty()
    recorded.draws[0].fill(factors)
    with ReplayDraws([factors]):
        assert torch.equal(F.dropout(inputs, 0.1), expected)
