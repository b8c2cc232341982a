"""Which captures into CUDA graphs the stub refuses, as a GPU does."""

from __future__ import annotations

from collections.abc import Callable

import gpu
import pytest
import torch

pytestmark = pytest.mark.cuda(stub=True)


def capture(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


ILLEGAL: dict[str, Callable[[torch.Tensor], object]] = {
    "a read": lambda x: x.sum().item(),
    "a wait for the device": lambda x: torch.cuda.synchronize(),
    "a wait for the stream": lambda x: torch.cuda.current_stream().synchronize(),
    "a copy of pageable memory": lambda x: x.copy_(torch.ones(3), non_blocking=True),
    "work on a stream that is not joined": lambda x: work_aside(x, is_joined=False),
}


def work_aside(x: torch.Tensor, *, is_joined: bool) -> None:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        x.add_(1)
        torch.cuda.current_stream().record_event()
        torch.empty(3, pin_memory=True).copy_(x, non_blocking=True)
    if is_joined:
        torch.cuda.current_stream().wait_stream(aside)


@pytest.mark.parametrize("function", ILLEGAL.values(), ids=ILLEGAL)
def test_is_illegal(function: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match=r"captur|unjoined"):
        capture(lambda: function(x))
    torch.cuda.synchronize()
    assert (x + x).sum().item() > 0  # the capture has ended


def test_arithmetic_and_joined_streams_are_legal() -> None:
    x = torch.ones(3, device="cuda")
    torch.empty(3, pin_memory=True)  # which the capture must not allocate
    with gpu.calls() as calls:
        graph = capture(lambda: work_aside(x, is_joined=True))
        graph.replay()
    assert calls.illegal == []
    assert calls.counts["capture begin"] == calls.counts["capture end"] == 1
    assert [call.detail for call in calls.of("launch", "graph")] == ["graph"]
