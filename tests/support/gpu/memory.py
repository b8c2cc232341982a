"""Tensors on the host and on a GPU of the stub that have the same memory."""

import torch

_HOST = torch.device("cpu")


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the host with the memory of one on a GPU. It does not keep the memory from being freed."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), _HOST, storage.nbytes())
    view = torch.empty(0, dtype=tensor.dtype)
    view.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        view = view.conj()
    return torch._neg_view(view) if tensor.is_neg() else view


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a new tensor on a GPU with the values and strides of one on the host."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    host_view(made).copy_(tensor)
    return made
