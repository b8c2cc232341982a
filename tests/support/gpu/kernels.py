"""Let the CPU's kernels compute in place of torch's CUDA kernels, on the same memory, which is the host's."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from gpu import copies, deferred, random_numbers, runtime, substitutes
from gpu.devices import check_devices, device_of
from gpu.memory import host_view, on_device
from gpu.random_numbers import Draw, default_generator, host_generator

Kernel = Callable[..., Any]

_OF_TORCH = {
    *("as_strided", "view", "_reshape_alias", "set_", "resize_", "unfold", "view_as_real", "view_as_complex"),
    *("_local_scalar_dense", "is_pinned", "pin_memory", "_pin_memory", "record_stream"),
    "_has_compatible_shallow_copy_type",
}
"""Operations that launch no kernel. Torch's own implementation does them."""

_TAKES_HOST_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations that copy an index from the host to the GPU."""

_WAITS = {
    *("nonzero", "masked_select", "equal", "bincount", "repeat_interleave"),
    "_linalg_svd",  # which reads whether it has converged
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
}
"""Operations that wait for the GPU because a size or their result depends on values."""

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
_TENSOR = torch._C.TensorType.get()
_library: list[torch.library.Library] = []


def install() -> None:
    """Replace every CUDA kernel of aten."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each replacement warns
        for name, operation in _cuda_operations():
            library.impl(name, _CudaKernel(operation), "CUDA", allow_override=True)
        # As a whole: CUDA's parts of it, such as _conv_depthwise2d, have no CPU kernel.
        convolution = torch.ops.aten.convolution.default
        library.impl("convolution", _CudaKernel(convolution), "CUDA", allow_override=True)
        for kernel in (_CudaKernel.__call__, copies.copy_, copies.copy_each_):
            # In a function that `torch.compile` compiles in parts, Dynamo would trace it.
            eval_frame.set_code_exec_strategy(kernel.__code__, _SKIP)
        library.impl("copy_", copies.copy_, "CUDA", allow_override=True)
        library.impl("_foreach_copy_", copies.copy_each_, "CUDA", allow_override=True)
    _library.append(library)


def _cuda_operations() -> Iterator[tuple[str, OpOverload]]:
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        if namespace != "aten" or not torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "CUDA"):
            continue
        base, _, overload = name.partition(".")
        if base in _OF_TORCH or base.startswith(("empty", "_cudnn", "cudnn", "miopen")):
            continue
        packet = getattr(torch.ops.aten, base, None)
        operation = getattr(packet, overload or "default", None)
        if operation is not None:
            yield name, operation


class _CudaKernel:
    """A CUDA kernel of an operation, computed by the CPU."""

    def __init__(self, operation: OpOverload) -> None:
        self._operation = operation
        self._name = operation.name()
        self._base = operation.name().removeprefix("aten::").partition(".")[0]
        self._compute: Kernel = substitutes.host_kernel(operation)
        arguments = operation._schema.arguments
        self._takes_generator = any(argument.name == "generator" for argument in arguments)
        is_random = torch.Tag.nondeterministic_seeded in operation.tags
        self._draws_from_default = is_random and not self._takes_generator
        names = [argument.name for argument in arguments]
        self._dropout = names.index("dropout_p") if "dropout_p" in names else None
        self._are_tensors = [argument.type.isSubtypeOf(_TENSOR) for argument in arguments]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        device = device_of(args, kwargs)
        if self._base in _TAKES_HOST_INDICES:
            args = self._with_indices(args, device)
        check_devices(self._name, device, args, kwargs)
        args = self._with_tensors(args)
        call = _HostCall(device)
        host_args, host_kwargs = self._lowered(call, args, kwargs)
        compute = functools.partial(self._run, host_args, host_kwargs, self._draw(device, args))
        runtime.note("launch", self._name, device)
        if self._base in _WAITS:
            copies.synchronize(device, self._name)
        elif runtime.is_deferred():
            return self._deferred(call, compute, args, kwargs)
        return call.raised(compute())

    def _deferred(
        self, call: _HostCall, compute: Callable[[], Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Give the kernel to the current stream, and return the results that it will compute."""
        try:
            results = deferred.results_of(self._operation, call.device, args, kwargs)
        except NotImplementedError:  # only the values tell the shapes
            runtime.finish(call.device)
            return call.raised(compute())
        views = deferred.views_of(results)
        runtime.enqueue(lambda: deferred.fill(views, compute()), call.device)
        return results

    def _lowered(self, call: _HostCall, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the CPU's kernel."""
        host_args, host_kwargs = list(tree_map(call.lowered, args)), tree_map(call.lowered, kwargs)
        if host_kwargs.get("pin_memory"):
            host_kwargs["pin_memory"] = False
        if self._takes_generator and not any(
            isinstance(value, torch.Generator) for value in (*host_args, *host_kwargs.values())
        ):
            host_kwargs["generator"] = host_generator(default_generator(call.device))
        return host_args, host_kwargs

    def _with_tensors(self, args: Any) -> list[Any]:
        """Make tensors of the numbers that torch has unwrapped."""
        return [
            torch.tensor(value) if is_tensor and isinstance(value, int | float | complex) else value
            for value, is_tensor in zip(args, self._are_tensors, strict=False)
        ]

    def _draw(self, device: torch.device, args: Sequence[Any]) -> Draw | None:
        """Return what this call draws from, if it is a default generator."""
        drops = self._dropout is None or (len(args) > self._dropout and args[self._dropout])
        if not (self._draws_from_default and drops):
            return None
        return Draw.next(device)

    def _run(self, args: list[Any], kwargs: dict[str, Any], draw: Draw | None) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            if draw is None:
                return self._compute(*args, **kwargs)
            before = torch.default_generator.get_state()
            torch.default_generator.set_state(draw.host_state)
            random_numbers.current.append(draw)
            try:
                return self._compute(*args, **kwargs)
            finally:
                random_numbers.current.pop()
                torch.default_generator.set_state(before)

    def _with_indices(self, args: Any, device: torch.device) -> Any:
        """Copy indices to the GPU, and wait if a mask is among them: its number of elements is a size."""
        indices = [None if index is None else index.to(device) for index in args[1]]
        if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
            copies.synchronize(device, "a mask as an index")
        return (args[0], indices, *args[2:])


class _HostCall:
    """What an operation's tensors on a GPU are on the host, and the other way."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def lowered(self, value: Any) -> Any:
        """Return an argument for the CPU's kernel."""
        if isinstance(value, torch.Tensor) and value.is_cuda:
            view = host_view(value)
            self._pairs.append((view, value))
            return view
        if isinstance(value, torch.Tensor) and runtime.is_deferred():
            return value.clone()  # a launch reads the numbers on the host that it is given
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        if isinstance(value, torch.Generator) and value.device.type == "cuda":
            return host_generator(value)
        return value

    def raised(self, results: Any) -> Any:
        """Return the results of the CPU's kernel as tensors on the GPU."""
        for view, tensor in self._pairs:
            if view.shape != tensor.shape:  # an `out` argument that the kernel has resized
                tensor.resize_(view.shape)
                host_view(tensor).copy_(view)
        return tree_map(self._raised, results)

    def _raised(self, result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or result.is_cuda:
            return result
        for view, tensor in self._pairs:
            if result is view:
                return tensor
        for view, tensor in self._pairs:
            if result.numel() and deferred.is_same_memory(result, view):
                is_same = result.shape == view.shape and result.stride() == view.stride()
                if is_same and result.data_ptr() == view.data_ptr():
                    return tensor
                return tensor.as_strided(result.shape, result.stride(), result.storage_offset())
        return on_device(result, self.device)
