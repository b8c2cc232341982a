"""Which GPU computes an operation, and what torch says about tensors that are elsewhere."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from gpu.build import UNCHECKED
from gpu.environment import stub_folder


def device_of(args: Any, kwargs: dict[str, Any]) -> torch.device:
    """Return the GPU that computes: that of the first tensor, the one that is asked for, or the current one."""
    for value in tree_iter((args, kwargs)):
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return value.device
    asked = kwargs.get("device")
    index = asked.index if isinstance(asked, torch.device) else None
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


def check_devices(name: str, device: torch.device, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse tensors of two devices, as torch does.

    Most kernels of CUDA refuse every tensor of the host. Those that compare devices themselves take a number there.
    """
    takes_numbers = name.removeprefix("aten::") in _unchecked()
    in_lists = not name.startswith("aten::_fused_")  # whose kernels read the addresses that a list holds
    for value, is_listed in _tensors(args, kwargs):
        if value.device == device:
            continue
        if value.is_cuda or value.dim() or not takes_numbers or (is_listed and not in_lists):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {device} and "
                f"{value.device}! (when checking arguments of {name})"
            )


def _tensors(args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[torch.Tensor, bool]]:
    """Yield each tensor, and whether it is in a list."""
    for argument in (*args, *kwargs.values()):
        for value in tree_iter(argument):
            if isinstance(value, torch.Tensor):
                yield value, value is not argument


@cache
def _unchecked() -> frozenset[str]:
    return frozenset((stub_folder() / UNCHECKED).read_text().splitlines())
