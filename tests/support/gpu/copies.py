"""`Tensor.copy_` on a GPU of the stub, which is torch's own code in outline, and waits that torch would make."""

import functools
import warnings
from collections.abc import Sequence

import torch

from gpu import runtime
from gpu.memory import host_view


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between the host and a GPU with one memcpy, after kernels that make both ends alike."""
    if target.numel() == 0:
        return target
    if target.is_cuda and source.is_cuda:
        _copy_by_kernel(target, source)
    else:
        _copy_across(target, source, non_blocking)
    return target


def copy_each_(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], non_blocking: bool = False
) -> None:
    """Copy lists: with one kernel on a GPU, else one after the other."""
    if all(tensor.is_cuda for tensor in (*targets, *sources)):
        runtime.note("launch", "aten::_foreach_copy_", targets[0].device)
        for target, source in zip(targets, sources, strict=True):
            _copy_between(target, source)
    else:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking)


def _copy_by_kernel(target: torch.Tensor, source: torch.Tensor) -> None:
    runtime.note("launch", "aten::copy_", target.device)
    _copy_between(target, source)


def _copy_between(target: torch.Tensor, source: torch.Tensor) -> None:
    copy = functools.partial(_copy_on_host, host_view(target), host_view(source))
    if runtime.is_deferred():
        runtime.enqueue(copy, target.device)
    else:
        copy()


def _copy_on_host(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops.aten.copy_.default(target, source)


def _copy_across(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    device = target.device if target.is_cuda else source.device
    if not _are_alike(target, source):
        source = source.to(target.dtype).expand_as(target).contiguous()
        staged = (
            target
            if target.is_contiguous()
            else torch.empty_like(target, memory_format=torch.contiguous_format)
        )
        _copy_across(staged, source, non_blocking)
        if staged is not target:
            target.copy_(staged, non_blocking)
        return
    on_host = source if target.is_cuda else target
    if torch.cuda.is_current_stream_capturing() and not on_host.is_pinned():
        raise RuntimeError(
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned."
        )
    runtime.copy_bytes(target.data_ptr(), source.data_ptr(), target.numel() * target.element_size(), device)
    if not non_blocking:
        synchronize(device, "copy_")
    elif runtime.is_deferred():  # torch's allocator of pinned memory does not give it away before the copy
        runtime.enqueue(lambda: on_host.data_ptr(), device)


def _are_alike(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether one memcpy copies: the bytes of both are in the same order, without gaps."""
    is_same = target.dtype == source.dtype and target.shape == source.shape
    if not is_same or target.is_conj() != source.is_conj() or target.is_neg() != source.is_neg():
        return False
    if target.is_contiguous() and source.is_contiguous():
        return True
    return (
        target.stride() == source.stride()
        and torch.empty_like(target, device="meta").stride() == target.stride()
    )


def synchronize(device: torch.device, operation: str) -> None:
    """Wait for the current stream; warn or raise before it if `torch.cuda.set_sync_debug_mode` says so."""
    mode = torch.cuda.get_sync_debug_mode()
    if mode == 1:
        warnings.warn(f"called a synchronizing CUDA operation: {operation}", stacklevel=2)
    if mode == 2:
        raise RuntimeError(f"called a synchronizing CUDA operation: {operation}")
    runtime.wait(device)
