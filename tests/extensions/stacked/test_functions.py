"""`StackedFunctions`: linear layers and cross entropies of all lanes equal those that torch maps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hydrant.extensions.stacked.forward import StackedFunctions

LANES, IN, OUT = 3, 5, 4


class Kernels(TorchDispatchMode):
    """Notes the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def stacked(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def of_lane(*tensors: Tensor) -> Tensor:
        with StackedFunctions():
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


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
@pytest.mark.parametrize("has_lanes", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropies_equal_those_of_each_lane(
    shape: tuple[int, ...], has_lanes: tuple[bool, bool], dim: int, reduction: str, smoothing: float
) -> None:
    torch.manual_seed(0)
    num_logits, num_targets = (LANES if has else 1 for has in has_lanes)
    leaf = torch.randn(num_logits, 5, OUT, *shape, dtype=torch.float64, requires_grad=True)
    logits = leaf.expand(LANES, *leaf.shape[1:])
    targets = torch.randint(0, OUT, (num_targets, 5, *shape)).expand(LANES, 5, *shape)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(
            logits, targets, ignore_index=1, reduction=reduction, label_smoothing=smoothing
        )

    given = [
        tensor.movedim(0, dim) if has else tensor[0]
        for tensor, has in zip((logits, targets), has_lanes, strict=True)
    ]
    ours = torch.vmap(stacked(loss), tuple(dim if has else None for has in has_lanes))(*given)
    theirs = torch.stack([loss(*of_lane) for of_lane in zip(logits, targets, strict=True)])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(each.sin().sum(), leaf)[0] for each in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_cross_entropies_with_class_weights_or_probabilities_are_left_alone() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(LANES, 5, OUT), torch.randint(0, OUT, (LANES, 5))
    weights = torch.rand(OUT)

    def weighted(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, weights)

    mapped = [torch.vmap(function)(logits, targets) for function in (stacked(weighted), weighted)]
    torch.testing.assert_close(*mapped)
    probabilities = logits.flip(0).softmax(-1)
    mapped = [torch.vmap(f)(logits, probabilities) for f in (stacked(F.cross_entropy), F.cross_entropy)]
    torch.testing.assert_close(*mapped)


def test_cross_entropies_under_autocast_are_computed_in_float32_as_alone() -> None:
    logits, targets = torch.randn(LANES, 5, OUT).bfloat16(), torch.randint(0, OUT, (LANES, 5))
    with torch.autocast("cpu", torch.bfloat16):
        mapped = torch.vmap(stacked(F.cross_entropy))(logits, targets)
        alone = [F.cross_entropy(*of_lane) for of_lane in zip(logits, targets, strict=True)]
    assert mapped.dtype == torch.float32
    torch.testing.assert_close(mapped, torch.stack(alone))


def test_wrong_arguments_have_the_errors_of_torch() -> None:
    logits, targets = torch.randn(LANES, 5, OUT), torch.randint(0, OUT, (LANES, 5))
    with pytest.raises(ValueError, match="avg is not a valid value for reduction"):
        torch.vmap(stacked(lambda x, t: F.cross_entropy(x, t, reduction="avg")))(logits, targets)
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        torch.vmap(stacked(F.cross_entropy))(logits, targets.clone().fill_(9))


def test_linear_layers_may_be_called_with_names() -> None:
    inputs, weight = torch.randn(LANES, 6, IN), torch.randn(LANES, OUT, IN)
    named = torch.vmap(stacked(lambda x, w: F.linear(input=x, weight=w)))(inputs, weight)
    torch.testing.assert_close(named, torch.vmap(F.linear)(inputs, weight))


def test_cross_entropies_of_all_lanes_are_one_kernel() -> None:
    logits, targets = torch.randn(LANES, 5, OUT), torch.randint(0, OUT, (LANES, 5))

    def kernels(function: Callable[..., Tensor]) -> list[str]:
        with Kernels() as called:
            torch.vmap(function)(logits, targets)
        return called.names

    assert kernels(stacked(F.cross_entropy)).count("nll_loss_forward") == 1
    assert "nll_loss_forward" not in kernels(F.cross_entropy)  # but several others: the reason for this rule


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
