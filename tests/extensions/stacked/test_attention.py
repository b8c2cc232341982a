"""Attention of stacked lanes: one call for all of them, with the numbers and gradients of each lane alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gpu
import pytest
import torch
import torch.nn.functional as F
from lanes import BASE, GPT, SEEDS, VIT, trainers_of
from marks import slow
from operations import Names
from torch import Tensor, nn

from hydrant.extensions.stacked.forward import fold_attention
from hydrant.extensions.stacked.lanes import CannotStack
from hydrant.extensions.stacked.stack import Stack
from hydrant.training.loop import make_update

LANES, B, H, L, D = 3, 2, 4, 8, 16
SAME: tuple[int, ...] = (LANES, B, H, L, D)
attend = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def folded() -> None:
    fold_attention()


def inputs(*shapes: Sequence[int], device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape).to(device, dtype).requires_grad_() for shape in shapes]


def check(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], has_lanes: Sequence[bool], **options: Any
) -> None:
    """Compare the output and the gradients of mapped lanes with those of each lane alone."""
    mapped = torch.vmap(function, tuple(0 if has else None for has in has_lanes), **options)(*tensors)
    lanes = [[x[n] if has else x for x, has in zip(tensors, has_lanes, strict=True)] for n in range(LANES)]
    alone = torch.stack([function(*lane) for lane in lanes])
    torch.testing.assert_close(mapped, alone)
    leaves = [x for x in tensors if x.requires_grad]
    gradients = [torch.autograd.grad(output.sin().sum(), leaves) for output in (mapped, alone)]
    torch.testing.assert_close(*gradients)


def check_options(device: str, options: dict[str, Any]) -> None:
    of_keys = (LANES, B, 2, L + 3, D) if options.get("enable_gqa") else (LANES, B, H, L, D)
    check(partial(attend, **options), inputs(SAME, of_keys, of_keys, device=device), [True] * 3)


OPTIONS: list[dict[str, Any]] = [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lanes_attend_as_alone(options: dict[str, Any]) -> None:
    check_options("cpu", options)


@pytest.mark.cuda
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lanes_attend_as_alone_on_cuda(options: dict[str, Any]) -> None:
    check_options("cuda", options)


def check_mask(device: str, shape: tuple[int, ...], has_lanes: bool, is_bias: bool) -> None:
    *given, mask = inputs(SAME, SAME, SAME, (LANES, *shape) if has_lanes else shape, device=device)
    if not is_bias:
        mask = (mask.detach() > 0) | torch.eye(L, dtype=torch.bool, device=device)
    check(attend, [*given, mask], [True, True, True, has_lanes])


MASKS = pytest.mark.parametrize("shape", [(L, L), (H, L, L), (1, H, L, L), (B, 1, L, L)], ids=str)
OF_LANES = pytest.mark.parametrize("has_lanes", [True, False])
KINDS = pytest.mark.parametrize("is_bias", [True, False])


@MASKS
@OF_LANES
@KINDS
def test_masks_and_biases_hold_for_their_lanes(
    shape: tuple[int, ...], has_lanes: bool, is_bias: bool
) -> None:
    check_mask("cpu", shape, has_lanes, is_bias)


@pytest.mark.cuda
@MASKS
@OF_LANES
@KINDS
def test_masks_and_biases_hold_for_their_lanes_on_cuda(
    shape: tuple[int, ...], has_lanes: bool, is_bias: bool
) -> None:
    check_mask("cuda", shape, has_lanes, is_bias)


@pytest.mark.parametrize(
    "has_lanes", [(True, False, False), (False, True, True), (True, True, False)], ids=str
)
def test_lanes_may_share_inputs(has_lanes: tuple[bool, ...]) -> None:
    check(attend, inputs(*(SAME if has else SAME[1:] for has in has_lanes)), has_lanes)


@pytest.mark.parametrize(
    "shapes",
    [((L, D), (L, D)), ((H, L, D), (H, L, D)), ((2, B, H, L, D),) * 2, ((B, H, L, D), (1, H, L, D))],
    ids=str,
)
def test_other_shapes_are_mapped_too(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    query, key = ((LANES, *shape) for shape in shapes)
    check(attend, inputs(query, key, key), [True] * 3)
    mask = torch.eye(L)
    check(lambda *given: attend(*given, attn_mask=mask), inputs(query, key, key), [True] * 3)
    if len(shapes[0]) > 2:
        check(attend, inputs(query, key, key, (LANES, 1, L, L)), [True] * 4)


@pytest.mark.parametrize("make", [
    partial(nn.MultiheadAttention, D, 2, batch_first=True),
    partial(nn.TransformerEncoderLayer, D, 2, 8, dropout=0.0, batch_first=True),
], ids=["attention", "layer"])  # fmt: skip
def test_modules_of_torch_call_it_once_for_all_lanes(make: Callable[[], nn.Module]) -> None:
    module = make()
    (x,) = inputs((LANES, B, L, D))

    def attended(x: Tensor) -> Tensor:
        is_layer = isinstance(module, nn.TransformerEncoderLayer)
        return module(x) if is_layer else module(x, x, x, need_weights=False)[0]

    check(attended, [x], [True])
    with Names() as names:
        torch.vmap(attended)(x)
    assert len(attention_in(names)) == 1


def attention_in(names: Names) -> list[str]:
    return [name for name in names.found if "scaled_dot_product" in name]


@pytest.mark.parametrize("base", [*slow((GPT,)), (*BASE, *VIT)], ids=["gpt", "vit"])
def test_a_stack_attends_as_often_as_one_lane(base: Sequence[str]) -> None:
    with trainers_of(*([*base, *words.split()] for words in SEEDS)) as lanes:
        stack = Stack(lanes[:2])
        with Names() as stacked:
            stack.update(measure=True)
        with Names() as alone:
            make_update(lanes[2], measure=True)
    assert attention_in(stacked) == attention_in(alone)
    assert attention_in(stacked)


@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize(
    ("dtype", "kernel"), [(torch.float32, "efficient"), (torch.bfloat16, "flash")], ids=str
)
def test_all_lanes_take_one_fused_kernel(dtype: torch.dtype, kernel: str) -> None:
    given = inputs(SAME, SAME, SAME, device="cuda", dtype=dtype)
    with gpu.calls() as calls:
        torch.vmap(attend)(*given).sum().backward()
    assert len(calls.of("launch", f"{kernel}_attention")) == len(calls.of("launch", "attention")) == 2


def test_autocast_converts_the_inputs_as_alone() -> None:
    query, key, value = inputs(SAME, SAME, SAME)
    with torch.autocast("cpu", torch.bfloat16):
        check(lambda q, k, v: attend(q, k, v.bfloat16()), [query, key, value], [True] * 3)
        assert torch.vmap(attend)(query, key, value).dtype == torch.bfloat16


@pytest.mark.slow
def test_compiled_lanes_attend_in_one_call() -> None:
    compiled = torch.compile(torch.vmap(attend), backend="aot_eager", fullgraph=True)
    given = inputs(SAME, SAME, SAME)
    torch.testing.assert_close(compiled(*given), torch.stack([*map(attend, *given)]))
    called = list[str]()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    torch.compile(torch.vmap(attend), backend=aot_autograd(fw_compiler=backend))(*given)
    assert sum("scaled_dot_product" in name for name in called) == 1


def test_maps_in_a_map_attend_as_alone() -> None:
    def of_samples(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.vmap(lambda *sample: attend(*(x[None] for x in sample))[0])(query, key, value)

    def of_shared(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.vmap(lambda x: attend(query, key, value) + x)(query[:, 0, 0, 0])

    given = inputs(SAME, SAME, SAME)
    check(of_samples, given, [True] * 3)
    check(of_shared, given, [True] * 3)


def test_dropout_is_left_to_torch_and_its_runs_train_alone() -> None:
    given = inputs(SAME, SAME, SAME)
    with pytest.raises(RuntimeError, match="random"):
        torch.vmap(partial(attend, dropout_p=0.5))(*given)
    dropped = torch.vmap(partial(attend, dropout_p=0.5), randomness="different")(*given)
    assert not torch.equal(dropped, torch.vmap(attend)(*given))
    with (
        trainers_of(*([*GPT, "model.dropout=0.1", seed] for seed in ("seed=0", "seed=1"))) as lanes,
        pytest.raises(CannotStack, match="random numbers that cannot be drawn"),
    ):
        Stack(lanes)
