"""Parameters of a model; memory, speed and peak FLOP/s of a device.

Count the FLOPs of a model, and find the weights that the count leaves out.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from hydrant.batch import Batch, map_tensors, tensors_of
from hydrant.data.tokens import with_cuts
from hydrant.errors import first_few, typed_line
from hydrant.terminal.text import percent
from hydrant.training.distributed.ddp import Collective, CollectiveRecorder

_PEAK_TFLOPS = {
    "GB200": 2500, "B200": 2250, "GH200": 989, "H200": 989, "H200 NVL": 835, "H100": 989, "H100 NVL": 835,
    "H100 PCIe": 756, "H800": 989, "H800 PCIe": 756, "H20": 148, "A100": 312, "A800": 312, "A40": 150, "A30": 165,
    "A10": 125, "A10G": 70, "L40S": 362, "L40": 181, "L4": 121, "V100": 125, "V100-PCIE": 112, "T4": 65,
}  # fmt: skip
"""Peaks of the tensor cores in bf16 or fp16, dense (without sparsity), in TFLOP/s, from NVIDIA's data sheets."""


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Return the number of all parameters and of the trainable ones."""
    parameters = list(module.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)


def peak_flops(device: torch.device) -> float | None:
    """Return the device's dense half-precision peak in FLOP/s by its data sheet, or None if it is unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    if re.search(r"\bMIG\b", name):  # a slice of a GPU, with a part of its peak
        return None
    longest_first = sorted(_PEAK_TFLOPS, key=len, reverse=True)
    model = next((model for model in longest_first if re.search(rf"\b{model}\b", name)), None)
    return None if model is None else _PEAK_TFLOPS[model] * 1e12


def peak_memory_gib(device: torch.device) -> float | None:
    """Return the peak memory of tensors on the device so far, in GiB, or None on a CPU, where it is not counted."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def reset_peak_memory(device: torch.device) -> None:
    """Count the peak memory of tensors on the device from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Time a large square matrix product on this device and return its FLOP/s: the median of five."""
    size = 8192 if device.type == "cuda" else 1024
    # Random numbers, because a product of constants draws less power and runs faster.
    matrix = torch.randn(size, size, device=device).to(dtype)
    seconds: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[1:])


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_aten: Any = torch.ops.aten
T = TypeVar("T")


class Flops(NamedTuple):
    """The FLOPs of a sample's forward pass."""

    per_sample: int
    uncounted: str  # what the number leaves out, for users; "" if nothing
    collectives: Sequence[Collective]  # that the pass calls


def count_flops(task: nn.Module, batch: Batch, forward: Callable[[Batch], T]) -> tuple[Flops, T]:
    """Return the FLOPs of one sample's forward pass, and what it returns. If they cannot be counted, they are 0.

    torch's `FlopCounterMode` counts matrix products, convolutions and attention; a multiply-add is two FLOPs. Attention
    is counted with all pairs of tokens, so that the number does not depend on where the documents of a batch end.

    Args:
        task: has the weights.
        batch: the samples.
        forward: calls the task in training mode.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which only a started run needs

    counter: Any = FlopCounterMode(display=False, custom_mapping={_aten.mkldnn_rnn_layer: _rnn_layer_flops})
    counter.mod_tracker = _NoModules()
    weights, recorder = _WeightTracker(task, counter.flop_registry), CollectiveRecorder()
    try:
        with _unfused_attention(), recorder, weights, counter:
            output = forward(_with_whole_documents(batch))
        per_sample, uncounted = counter.get_total_flops() // batch.num_samples, weights.describe_uncounted()
    except Exception as error:  # of the model, or of the way in which its operations are counted
        output = forward(batch)
        per_sample, uncounted = 0, f"flops_per_sample is 0: torch cannot count them ({typed_line(error)})"
    return Flops(per_sample, uncounted, recorder.collectives), output


class _NoModules(contextlib.nullcontext[None]):
    """Counts for no single module: torch's own tracker does not allow derivatives in a forward pass."""

    parents = ("Global",)


def _with_whole_documents(batch: Batch) -> Batch:
    """Return the batch with one document in each sequence, if documents are packed into them."""
    if not any(hasattr(tensor, "lengths") for tensor in tensors_of(batch)):
        return batch

    def whole(tensor: Tensor) -> Tensor:
        if not hasattr(tensor, "lengths"):
            return tensor
        return with_cuts(
            np.zeros(tuple(tensor.shape), np.int64), lambda array: torch.from_numpy(array).to(tensor.device)
        )

    return map_tensors(whole, batch)


def _rnn_layer_flops(inputs: Sequence[int], *weights: Any, **_: Any) -> int:
    """Return the FLOPs of oneDNN's LSTM layer: each of two matrices multiplies each input, (length, batch, size)."""
    return 2 * math.prod(inputs[:-1]) * sum(math.prod(matrix) for matrix in weights[:2])


@contextmanager
def _unfused_attention() -> Generator[None]:
    """Keep torch's attention layers from their inference kernel, which a frozen part could use: it is not counted."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


_CHEAP = frozenset((
    _aten.cat, _aten.copy_, _aten.embedding, _aten._embedding_bag, _aten._embedding_bag_forward_only, _aten.gather,
    _aten.index, _aten.index_select, _aten.native_batch_norm, _aten.native_group_norm, _aten.native_layer_norm,
    _aten.stack,
))  # fmt: skip
"""Operations with few FLOPs for each weight that are not marked as pointwise."""


class _WeightTracker(TorchDispatchMode):
    """A context that finds the weights that torch's FLOP counter misses: an operation that it does not count combines
    them with data.

    It follows each weight through tensors that are computed from weights alone, such as casts and normalized weights.

    Args:
        module: has the weights.
        counted: contains the operations that are counted.
    """

    supports_higher_order_operators = True

    def __init__(self, module: nn.Module, counted: Any) -> None:
        super().__init__()
        self._counted = counted
        self._parameters = dict(module.named_parameters())
        self._origins = dict.fromkeys(map(_memory, module.buffers()), frozenset[str]())
        """By memory address: the names of the matrices from which a tensor without data was computed."""
        for name, parameter in self._parameters.items():
            names = frozenset({name} if parameter.ndim > 1 else ())
            self._origins[_memory(parameter)] = names | self._origins.get(_memory(parameter), frozenset())
        self._fixed = frozenset(map(_memory, self._parameters.values()))
        self._kept = list[Tensor]()  # so that no other tensor gets their memory
        self._reached = set[str]()
        self._missed = dict[str, str]()  # the operation by the name of the matrix

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        output = func(*args, **(kwargs or {}))
        memories, new = map(_memory, _tensors((args, kwargs))), _tensors(output)
        origins = [None if memory is None else self._origins.get(memory) for memory in memories]
        names = frozenset[str]().union(*filter(None, origins))
        if None not in origins:
            self._kept += new
            self._origins |= dict.fromkeys(map(_memory, new), names)
            return output
        for memory in {*map(_memory, new)} - self._fixed:
            self._origins.pop(memory, None)
        operation = getattr(func, "_overloadpacket", func)  # a higher order operator has none
        if operation in self._counted:
            self._reached |= names
        elif operation not in _CHEAP and torch.Tag.pointwise not in getattr(func, "tags", ()):
            self._missed |= dict.fromkeys(names, str(operation))
        return output

    def describe_uncounted(self) -> str:
        """Return which matrices no counted operation uses, and which operation uses them instead; "" if there are
        none."""
        missed = {name: operation for name, operation in self._missed.items() if name not in self._reached}
        if not missed:
            return ""
        total = sum(parameter.numel() for parameter in self._parameters.values())
        share = sum(self._parameters[name].numel() for name in missed) / total
        return (
            f"flops_per_sample is too small: torch does not count {', '.join(sorted({*missed.values()}))}, which uses "
            f"{percent(share)} of the parameters ({first_few([*missed])}); durations in FLOPs and perf/mfu leave it out"
        )


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int | None:
    """Return the address of a tensor's memory, which its views share; None if it is made of other tensors."""
    if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
        return None
    return tensor.untyped_storage().data_ptr()
