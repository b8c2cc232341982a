"""What a GPU of the stub computes."""

from collections.abc import Callable
from typing import Any

import gpu
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional

pytestmark = pytest.mark.cuda(stub=True)


def test_an_operation_has_the_numbers_of_the_cpu() -> None:
    x = torch.randn(7, 5)
    for function in (torch.softmax, torch.cumsum, torch.sort, torch.logsumexp):
        ours, theirs = function(x.cuda(), 1), function(x, 1)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, check_device=False)


def test_a_network_has_the_gradients_of_the_cpu() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, groups=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    images, labels = torch.randn(4, 3, 9, 9), torch.arange(4)

    def gradients(device: str) -> list[torch.Tensor]:
        network.to(device).zero_grad()
        functional.cross_entropy(network(images.to(device)), labels.to(device)).backward()
        return [p.grad.clone().cpu() for p in network.parameters() if p.grad is not None]

    on_cpu, on_gpu = gradients("cpu"), gradients("cuda")
    assert all(torch.equal(one, other) for one, other in zip(on_cpu, on_gpu, strict=True))


def attended(
    device: str, dtype: torch.dtype, mask: torch.Tensor | None, **options: Any
) -> list[torch.Tensor]:
    """Return the output of an attention and the gradients of its inputs."""
    torch.manual_seed(0)
    heads = 2 if options.get("enable_gqa") else 4
    shapes = [(2, 4, 17, 8), (2, heads, 17, 8), (2, heads, 17, 8)]
    inputs = [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]
    mask = None if mask is None else mask.to(device)
    output = functional.scaled_dot_product_attention(*inputs, attn_mask=mask, **options)
    output.square().sum().backward()
    return [output.detach().cpu(), *(x.grad.cpu() for x in inputs if x.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_fused_attention_is_that_of_the_cpu(dtype: torch.dtype, is_causal: bool) -> None:
    with gpu.calls() as calls:
        on_gpu = attended("cuda", dtype, None, is_causal=is_causal)
    kernel = "efficient" if dtype == torch.float32 else "flash"
    assert len(calls.of("launch", f"{kernel}_attention")) == 2
    for one, other in zip(on_gpu, attended("cpu", dtype, None, is_causal=is_causal), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("function", [functional.softmax, functional.log_softmax])
def test_softmax_under_autocast_is_that_of_float32(function: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(4, 9, dtype=torch.float16)

    def with_gradient(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        output = function(x.float() if x.device.type == "cpu" else x, 1)
        output.square().sum().backward()
        assert output.dtype == torch.float32
        return [output.detach().cpu(), x.grad.cpu()]  # type: ignore[union-attr]

    with torch.autocast("cuda", torch.float16):
        on_gpu = with_gradient(x.cuda())
    for one, other in zip(on_gpu, with_gradient(x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_attention_with_a_mask_is_that_of_the_cpu(enable_gqa: bool) -> None:
    mask = torch.rand(17, 17, generator=torch.Generator().manual_seed(1)) > 0.5
    mask |= torch.eye(17, dtype=torch.bool)
    on_gpu, on_cpu = (attended(d, torch.float32, mask, enable_gqa=enable_gqa) for d in ("cuda", "cpu"))
    for one, other in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(one, other)


def flash_results(inputs: list[torch.Tensor], dropout: float) -> tuple[torch.Tensor, ...]:
    output, *saved = torch.ops.aten._scaled_dot_product_flash_attention(*inputs, dropout)
    state = [*saved[:3], 16, 16, dropout, False, *saved[5:7]]
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    return output, *backward(output, *inputs, output, *state)


def efficient_results(inputs: list[torch.Tensor], dropout: float) -> tuple[torch.Tensor, ...]:
    output, *saved = torch.ops.aten._scaled_dot_product_efficient_attention(*inputs, None, True, dropout)
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    return output, *backward(output, *inputs, None, output, *saved, dropout, [True, True, True, False])[:3]


@pytest.mark.parametrize("results", [flash_results, efficient_results])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("is_by_tokens", [False, True])
def test_attention_has_the_strides_that_compiled_code_expects(
    results: Callable[[list[torch.Tensor], float], tuple[torch.Tensor, ...]],
    dropout: float,
    is_by_tokens: bool,
) -> None:
    def strides() -> list[tuple[int, ...]]:
        shape = (2, 16, 4, 8) if is_by_tokens else (2, 4, 16, 8)
        inputs = [torch.ones(shape, device="cuda", dtype=torch.float16) for _ in range(3)]
        inputs = [x.transpose(1, 2) if is_by_tokens else x for x in inputs]
        return [x.stride() for x in results(inputs, dropout)]

    with FakeTensorMode():
        expected = strides()
    assert strides() == expected


def test_attention_with_dropout_has_the_gradient_of_its_output() -> None:
    """The backward pass drops what the forward pass has dropped."""
    inputs = [torch.randn(1, 2, 6, 8, device="cuda", requires_grad=True) for _ in range(3)]
    state = torch.cuda.get_rng_state()

    def loss(*inputs: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_rng_state(state)
        return functional.scaled_dot_product_attention(*inputs, dropout_p=0.5).square().sum()

    gradients = torch.autograd.grad(loss(*inputs), inputs)
    directions = [torch.randn_like(x) for x in inputs]
    above, below = (
        loss(*(x + step * y for x, y in zip(inputs, directions, strict=True))) for step in (1e-2, -1e-2)
    )
    slope = sum((x * y).sum() for x, y in zip(gradients, directions, strict=True))
    torch.testing.assert_close((above - below) / 2e-2, slope, rtol=1e-3, atol=1e-3)


def test_kernels_are_not_traced_in_code_that_is_compiled_in_parts() -> None:
    def doubled(x: torch.Tensor) -> list[float]:
        return (2 * x).sum(0).tolist()

    assert torch.compile(doubled, backend="eager")(torch.ones(3, 2, device="cuda")) == [6, 6]


def test_results_are_views_where_those_of_the_cpu_are() -> None:
    x = torch.zeros(2, 3, device="cuda")
    x.t()[1].add_(1)
    torch.add(x, 1, out=(out := torch.empty(0, device="cuda")))
    assert x.tolist() == [[0, 1, 0], [0, 1, 0]]
    assert out.tolist() == [[1, 2, 1], [1, 2, 1]]


def test_random_numbers_are_a_function_of_the_generator() -> None:
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    first = [functional.dropout(torch.ones(64, device="cuda")), torch.randn(64, device="cuda")]
    assert not torch.equal(first[1], torch.randn(64, device="cuda"))
    torch.cuda.set_rng_state(state)
    again = [functional.dropout(torch.ones(64, device="cuda")), torch.randn(64, device="cuda")]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_random_numbers_leave_the_generator_of_the_cpu_alone() -> None:
    before = torch.get_rng_state()
    functional.dropout(torch.ones(64, device="cuda"))
    torch.native_dropout(torch.ones(64, device="cuda"), 0.5, True)
    assert torch.equal(torch.get_rng_state(), before)


MIXED = {
    "a tensor of the host": lambda x: x + torch.ones(3),
    "weights of the host": lambda x: functional.linear(x, torch.ones(2, 3)),
    "an index of the host": lambda x: x.index_select(0, torch.tensor(0)),
    "a step of the host in a fused update": lambda x: torch._fused_adamw_(
        [x], [x.clone()], [x.clone()], [x.clone()], [], [torch.tensor(1.0)], lr=0.1, beta1=0.9, beta2=0.99,
        weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("operation", MIXED.values(), ids=MIXED)
def test_tensors_of_two_devices_are_refused(operation: object) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        operation(torch.ones(3, device="cuda"))  # type: ignore[operator]


def test_numbers_of_the_host_are_taken() -> None:
    x = torch.ones(3, device="cuda")
    assert (x * torch.tensor(2.0)).tolist() == [2, 2, 2]
    assert x[torch.tensor([0, 2])].tolist() == [1, 1]
