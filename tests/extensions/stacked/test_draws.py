"""Recorded draws give the numbers of the call again, bit for bit."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.extensions.stacked.random import (
    Draw,
    Dropout,
    RecordDraws,
    ReplayDraws,
    SourceBySource,
    StackedDropouts,
    choose_drawing,
    philox,
)

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


def test_philox_gives_the_numbers_of_its_authors() -> None:
    """The vector for zeros of Random123, and the first numbers of torch.rand on CUDA with the seeds 0 and 42."""
    threads = torch.arange(5)
    first, *others = philox(torch.tensor([0, 42]), threads, torch.zeros_like(threads))
    assert [f"{number[0, 0]:08x}" for number in (first, *others)] == [
        "6627e8d5",
        "e169c58d",
        "bc57ac4c",
        "9b00dbd8",
    ]
    expected = [[0.3990, 0.5167, 0.0249, 0.9401, 0.9459], [0.6130, 0.0101, 0.3984, 0.0403, 0.1563]]
    assert np.allclose(first / 2**32, expected, atol=5e-5)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.999])
def test_the_limit_of_dropout_is_exact(ratio: float) -> None:
    limit = Dropout(ratio, torch.float32, 4).limit()
    numbers = np.array([max(limit - 1, 0), min(limit, 2**32 - 1)]).astype(np.float32)
    uniform = numbers * np.float32(2**-32) + np.float32(2**-33)
    assert (uniform < np.float32(1 - ratio)).tolist() == [True, limit == 2**32]


def draws_of(function: Callable[[Tensor], Tensor], inputs: Tensor) -> list[Draw]:
    with RecordDraws() as recorded:
        function(function(inputs))
    return recorded.draws


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((64, 48), torch.float32),
        ((3, 5, 4, 7), torch.float32),
        ((16, 12), torch.bfloat16),
        ((36, 3), torch.float16),
        pytest.param((3, 400_000), torch.float32, marks=pytest.mark.slow),  # more values than threads
    ],
)
def test_dropout_of_all_lanes_is_that_of_each(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    inputs = torch.ones(shape, device="cuda", dtype=dtype)
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    programs = [draws_of(lambda x, ratio=ratio: F.dropout(x, ratio), inputs) for ratio in (0.1, 0.4)]
    sources = [(0, programs[0]), (7, programs[0]), (2**63 + 5, programs[1])]
    steps = [(1, 3), (0, 0), (1, 0), (70, 0), (2, 0)]
    if inputs.numel() > 10**6:
        sources, steps = sources[:2], steps[:1]
    together = choose_drawing(sources, inputs.device)
    assert isinstance(together, StackedDropouts)
    for num_updates, micro_step in steps:
        drawn = together.draw(num_updates, micro_step)
        for place, source in enumerate(sources):
            alone = SourceBySource([source], inputs.device).draw(num_updates, micro_step)
            assert all(torch.equal(d[place], a[0]) for d, a in zip(drawn, alone, strict=True))
        assert not torch.equal(drawn[0][0], drawn[0][1])
        assert not torch.equal(drawn[0][0], drawn[1][0])


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + torch.randn_like(x), "not all of them are those of dropout"),
        (lambda x: F.dropout(x[:, :3], 0.1), "in another order than is known"),
        (lambda x: F.dropout(x, 0.1), "in another order than is known"),
    ],
    ids=["another kind", "no multiple of four", "other numbers"],
)
def test_lanes_draw_alone_what_is_not_known(
    function: Callable[[Tensor], Tensor],
    reason: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO", logger="hydrant")
    monkeypatch.setattr(Dropout, "limit", lambda dropout: 2**31)  # the last case
    draws = draws_of(function, torch.ones(5, 8, device="cuda"))
    assert isinstance(choose_drawing([(0, draws), (1, draws)], torch.device("cuda", 0)), SourceBySource)
    assert reason in caplog.text


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("shapes", "ratios", "reason"),
    [
        ([(5, 8)], (0.5, 1.0), "not all of them are those of dropout"),
        ([(5, 8), (5, 7)], (0.1, 0.1), "in another order than is known"),
        ([(0, 8)], (0.1, 0.2), "in another order than is known"),
        ([(2, 2)], (0.9999, 0.9998), "drops all values of a call"),
    ],
    ids=["a later lane drops everything", "a later call is no multiple of four", "no values", "all dropped"],
)
def test_lanes_draw_alone_if_one_call_is_not_known(
    shapes: Sequence[tuple[int, ...]], ratios: Sequence[float], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="hydrant")
    sources = list[tuple[int, list[Draw]]]()
    for seed, ratio in enumerate(ratios):
        with RecordDraws() as recorded:
            for shape in shapes:
                F.dropout(torch.ones(shape, device="cuda"), ratio)
        sources.append((seed, recorded.draws))
    assert isinstance(choose_drawing(sources, torch.device("cuda", 0)), SourceBySource)
    assert reason in caplog.text


@pytest.mark.slow
@pytest.mark.cuda
@pytest.mark.parametrize("window", [1, 2**20])
def test_the_memory_of_dropout_does_not_grow_with_the_micro_batches(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.extensions.stacked.random._WINDOW_BYTES", window)
    draws = draws_of(lambda x: F.dropout(x, 0.1), torch.ones(64, 64, device="cuda"))
    together = StackedDropouts([(0, draws), (1, draws)], torch.device("cuda", 0), (4, 4))
    before = torch.cuda.memory_allocated()
    for num_updates in range(3):
        for micro_step in range(16):
            drawn = together.draw(num_updates, micro_step)
            alone = SourceBySource([(1, draws)], torch.device("cuda", 0)).draw(num_updates, micro_step)
            assert all(torch.equal(d[1], a[0]) for d, a in zip(drawn, alone, strict=True))
    del drawn, alone
    bytes_of_masks = 2 * 2 * 64 * 64
    assert torch.cuda.memory_allocated() - before <= window + 4 * bytes_of_masks


@pytest.mark.slow
@pytest.mark.cuda
def test_many_lanes_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = draws_of(lambda x: F.dropout(x, 0.1), torch.ones(5, 8, device="cuda"))
    sources = [(seed, draws) for seed in range(5)]
    whole = StackedDropouts(sources, torch.device("cuda", 0), (4, 4)).draw(3, 0)
    monkeypatch.setattr("hydrant.extensions.stacked.random._CHUNK_BYTES", 2 * 40 * 20)  # two lanes
    parts = StackedDropouts(sources, torch.device("cuda", 0), (4, 4)).draw(3, 0)
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))
