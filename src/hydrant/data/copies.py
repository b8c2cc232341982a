"""Copies of batches from the host to the device of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Copies = Callable[[Sequence[Tensor]], list[Tensor]]
"""Copies tensors from the host to a device, also if that is the host."""


class DirectCopies:
    """Copies to a device in the order of its other work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.to(self._device, non_blocking=True, copy=True) for tensor in tensors]


MAX_WAITING_BATCHES = 8
"""The most copied batches that wait in the device's memory. With CUDA graphs, the host can be far ahead of the
device."""


class SideStreamCopies:
    """Copies to a CUDA device on a separate stream, while the device computes.

    The host asks for a batch while the device still computes earlier ones, so the copy is mostly done when the device
    needs it. The work that uses a copy waits for it. The allocator keeps the copy and its pinned memory until the
    stream has used them. So the host waits for the device before it copies more than `MAX_WAITING_BATCHES`.
    """

    def __init__(self, device: torch.device) -> None:
        self._copy = DirectCopies(device)
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._ends: deque[torch.cuda.Event] = deque()  # of the work on each batch that may still wait

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        computing = torch.cuda.current_stream(self._device)
        self._ends.append(torch.cuda.Event(blocking=True))
        self._ends[-1].record(computing)
        if len(self._ends) > MAX_WAITING_BATCHES:
            self._ends.popleft().synchronize()
        with torch.cuda.stream(self._stream):
            copies = self._copy(tensors)
        computing.wait_stream(self._stream)
        for copy in copies:
            copy.record_stream(computing)
        return copies


def copies_to(device: torch.device) -> Copies:
    """Return the copies to a device that delay its other work least."""
    return SideStreamCopies(device) if device.type == "cuda" else DirectCopies(device)
