"""What the record of the stub says about waits, copies, launches and captures, and what torch's own debug mode says."""

import warnings
from collections.abc import Callable

import gpu
import pytest
import torch

pytestmark = pytest.mark.cuda(stub=True)

WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "to the host": lambda x: x.cpu(),
    "to pageable memory without blocking": lambda x: torch.empty(5, 3).copy_(x, non_blocking=True),
    "to a transposed tensor": lambda x: x.new_empty(3, 5, device="cpu").t().copy_(x),
    "a number from the host": lambda x: x + torch.ones(3).to(x.device),
    "nonzero": lambda x: x.nonzero(),
    "a mask as an index": lambda x: x[x > 0],
    "equal": lambda x: torch.equal(x, x),
    "a stream": lambda x: torch.cuda.current_stream().synchronize(),
    "a device": lambda x: torch.cuda.synchronize(),
    "an event": lambda x: torch.cuda.current_stream().record_event().synchronize(),
}
QUIET: dict[str, Callable[[torch.Tensor], object]] = {
    "arithmetic": lambda x: (2 * x + x.t().t()).relu().sum(0),
    "an index on the GPU": lambda x: x[torch.arange(2, device=x.device)],
    "pinned to the GPU": lambda x: torch.ones(3).pin_memory().to(x.device, non_blocking=True),
    "to pinned memory": lambda x: torch.empty(5, 3, pin_memory=True).copy_(x, non_blocking=True),
    "an event between streams": lambda x: torch.cuda.Stream().wait_stream(torch.cuda.current_stream()),
}


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(5, 3, device="cuda")


@pytest.mark.parametrize("operation", WAITING.values(), ids=WAITING)
def test_waits(operation: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    with gpu.calls() as calls:
        operation(x)
    assert calls.waits >= 1


@pytest.mark.parametrize("operation", QUIET.values(), ids=QUIET)
def test_does_not_wait(operation: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    with gpu.calls() as calls:
        operation(x)
    assert (calls.waits, calls.pageable_copies) == (0, 0)


@pytest.mark.parametrize("name", ["item", "to the host", "nonzero"])
def test_the_debug_mode_of_torch_sees_a_wait(name: str, x: torch.Tensor) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        WAITING[name](x)
        torch.cuda.set_sync_debug_mode("default")
    assert any("called a synchronizing CUDA operation" in str(warning.message) for warning in seen)


def test_copies_are_counted_by_their_memory(x: torch.Tensor) -> None:
    with gpu.calls() as calls:
        torch.ones(3).to(x.device)
        torch.ones(3).pin_memory().to(x.device, non_blocking=True)
        x.clone()
    details = [call.detail for call in calls.of("copy")]
    assert details == ["H2D pageable async 12", "H2D pinned async 12"]
    assert calls.pageable_copies == 1


def test_launches_are_counted(x: torch.Tensor) -> None:
    with gpu.calls() as calls:
        x + x
        torch._foreach_mul_([x, x], 2.0)
    assert [call.detail for call in calls.of("launch")] == ["aten::add.Tensor", "aten::_foreach_mul_.Scalar"]


def test_allocations_are_those_of_cuda(x: torch.Tensor) -> None:
    large = 64 << 20
    with gpu.calls() as calls:
        first = torch.empty(large, dtype=torch.uint8, device="cuda")
        del first
        torch.empty(large, dtype=torch.uint8, device="cuda")  # from torch's cache
    assert calls.allocations == 1


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
