"""`StackedLinear`: linear layers of all lanes equal those of torch, and their gradients lie in memory as weights do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.training.stack.linear import StackedLinear

LANES, IN, OUT = 3, 5, 4


def stacked(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def of_lane(*tensors: Tensor) -> Tensor:
        with StackedLinear():
            return function(*tensors)

    return of_lane


def results(
    function: Callable[..., Tensor], tensors: list[Tensor], in_dims: tuple[int | None, ...]
) -> list[Tensor]:
    """Return what a mapped function returns, and the gradients of its arguments."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output = torch.vmap(function, in_dims)(*leaves)
    return [output, *torch.autograd.grad(output.sin().sum(), leaves)]


@pytest.mark.parametrize("shape", [(), (6,), (2, 6), (2, 3, 6)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, 2, 1), (None, 0, 0), (0, None, None)])
def test_layers_equal_those_of_torch(
    shape: tuple[int, ...], has_bias: bool, in_dims: tuple[int | None, ...]
) -> None:
    torch.manual_seed(0)
    shapes = [(*shape, IN), (OUT, IN), (OUT,)][: 3 if has_bias else 2]
    in_dims = in_dims[: len(shapes)]
    if not shape:
        in_dims = tuple(dim if dim is None else 0 for dim in in_dims)
    tensors = list[Tensor]()
    for size, dim in zip(shapes, in_dims, strict=True):
        lanes = [] if dim is None else [LANES]
        at = dim or 0
        tensors.append(torch.randn(*size[:at], *lanes, *size[at:], dtype=torch.float64))
    ours, theirs = results(stacked(F.linear), tensors, in_dims), results(F.linear, tensors, in_dims)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_gradients_of_the_weights_need_no_copy() -> None:
    tensors = [torch.randn(LANES, 6, IN), torch.randn(LANES, OUT, IN), torch.randn(LANES, OUT)]
    assert results(stacked(F.linear), tensors, (0, 0, 0))[2].is_contiguous()
    assert not results(F.linear, tensors, (0, 0, 0))[2].is_contiguous()  # the reason why this class exists


def test_modules_are_covered_and_their_output_can_be_differentiated_twice() -> None:
    layer = nn.Linear(IN, OUT)
    weights = {name: torch.stack([p.detach()] * LANES).double() for name, p in layer.named_parameters()}
    inputs = torch.randn(LANES, 6, IN, dtype=torch.float64, requires_grad=True)

    def call(weight: Tensor, bias: Tensor, values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (values,)).sin()

    def twice(function: Callable[..., Tensor]) -> Tensor:
        output = torch.vmap(function)(weights["weight"], weights["bias"], inputs)
        (first,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        return torch.autograd.grad(first.square().sum(), inputs)[0]

    torch.testing.assert_close(twice(stacked(call)), twice(call))


def test_layers_under_autocast_and_in_another_transform_are_left_alone() -> None:
    inputs, weight = torch.randn(LANES, 6, IN), torch.randn(LANES, OUT, IN)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.vmap(stacked(F.linear))(inputs, weight).dtype == torch.bfloat16

    def loss(weight: Tensor, values: Tensor) -> Tensor:
        return F.linear(values, weight).sin().sum()

    def gradient(values: Tensor, weight: Tensor) -> Tensor:
        return torch.func.grad(loss)(weight, values)

    torch.testing.assert_close(
        torch.vmap(stacked(gradient))(inputs, weight), torch.vmap(gradient)(inputs, weight)
    )
