"""Batches are copied to CUDA on a separate stream and used only after that: on fake CUDA with planted streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sources import as_input
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from hydrant.data import LoaderSource
from hydrant.data.in_memory import MAX_WAITING_BATCHES, copies_to
from hydrant.data.loader import _Transfer


class PlantedStream:
    """A stream that records what is queued on it, and what is queued before each wait for another one."""

    def __init__(self, _: object = None) -> None:
        self.queue: list[Any] = []
        self.num_events = 0

    def wait_stream(self, other: PlantedStream) -> None:
        self.queue.append(list(other.queue))


class PlantedEvent:
    """An event that records which of a stream's events the host waited for last."""

    waited = 0

    def __init__(self, *, blocking: bool) -> None:
        assert blocking, "the host would keep a core busy"
        self.recorded = 0

    def record(self, stream: PlantedStream) -> None:
        self.recorded = stream.num_events = stream.num_events + 1

    def synchronize(self) -> None:
        PlantedEvent.waited = self.recorded


class Queueing(TorchDispatchMode):
    """Queues each operation on the current planted stream, with its inputs and its result."""

    def __init__(self, streams: list[PlantedStream]) -> None:
        super().__init__()
        self.streams = streams

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.streams[-1].queue.append((func, args, result))
        return result


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[PlantedStream]:
    """The stack of current streams."""
    stack = [PlantedStream()]

    @contextlib.contextmanager
    def use(stream: PlantedStream) -> Iterator[None]:
        stack.append(stream)
        yield
        stack.pop()

    monkeypatch.setattr(torch.cuda, "Stream", PlantedStream)
    monkeypatch.setattr(torch.cuda, "Event", PlantedEvent)
    monkeypatch.setattr(PlantedEvent, "waited", 0)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stack[-1])
    return stack


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_batch_is_used_only_after_its_copy_on_the_side_stream(
    dtype: torch.dtype, streams: list[PlantedStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[torch.Tensor, PlantedStream]] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: kept.append((tensor, stream)))
    source = LoaderSource([(0, 0)], as_input, as_input, mean=(0.5,), std=(0.5,), num_workers=0)
    [computing] = streams
    with FakeTensorMode(allow_non_fake_inputs=True):
        transfer = _Transfer.of(source, torch.device("cuda", 0))
        host = [torch.zeros(4, 1, 2, 2, dtype=dtype), torch.zeros(4, dtype=torch.int64)]
        for _ in range(2):
            computing.queue.clear()
            kept.clear()
            with Queueing(streams):
                batch = transfer((host, {}))
                batch.inputs.add_(1)
            [before] = [entry for entry in computing.queue if isinstance(entry, list)]
            copies = [result for func, _, result in before if func is torch.ops.aten._to_copy.default][-2:]
            assert [copy.device.type for copy in copies] == ["cuda", "cuda"]
            wait = computing.queue.index(before)
            assert not any(
                arg is copy for _, args, _ in computing.queue[:wait] for arg in args for copy in copies
            )
            assert [(id(tensor), stream) for tensor, stream in kept] == [(id(c), computing) for c in copies]
    assert streams == [computing]


@pytest.mark.usefixtures("streams")
def test_the_host_is_a_bounded_number_of_batches_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event before the copy of batch n is the end of all work on the batches before it."""
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    with FakeTensorMode():
        copies = copies_to(torch.device("cuda", 0))
        for num_copied in range(1, 3 * MAX_WAITING_BATCHES):
            copies([torch.zeros(3)])
            assert PlantedEvent.waited == max(0, num_copied - MAX_WAITING_BATCHES)


def test_a_copy_on_the_host_needs_no_stream(streams: list[PlantedStream]) -> None:
    original = torch.zeros(3)
    [copy] = copies_to(torch.device("cpu"))([original])
    copy.add_(1)
    assert original.tolist() == [0, 0, 0]
    assert streams[0].queue == []
