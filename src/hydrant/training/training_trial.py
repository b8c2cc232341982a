"""Call a task on the host before its run, without a trace."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from hydrant import seeding


@contextmanager
def training_trial(task: nn.Module) -> Generator[None]:
    """Restore the modes, attributes and buffers of a task on the host after this block, and the random states.

    An attribute that a forward pass assigns, such as a count of calls, is restored; a list that it extends is not.
    """
    modules: list[Any] = list(task.modules())
    # A forward pass may add a buffer, or assign a new tensor to one, so the places are kept.
    places = [
        (held, dict(held))
        for module in modules
        for held in (cast("dict[str, Any]", vars(module)), module._buffers)
    ]
    buffers = [(buffer, buffer.clone()) for buffer in task.buffers() if not _is_expanded(buffer)]
    host = seeding.host_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        seeding.set_host_state(host)
        for held, before in places:
            held.clear()
            held.update(before)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _is_expanded(buffer: Tensor) -> bool:
    """Return whether several elements share their memory: then torch refuses to write into the buffer."""
    if buffer.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True))
