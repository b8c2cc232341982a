"""Number formats of the forward and backward pass, with the loss scaler that fp16 needs.

fp32 is the plain case: no autocast, and a scaler that is switched off.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydrant.batch import Batch
from hydrant.errors import ConfigError, unknown_name

_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_PARAMETERS = {"float32": None, "bfloat16": torch.bfloat16}
_FP8 = ("tensorwise", "rowwise")
_MATMUL = ("highest", "high")
_AS_IT_IS = nullcontext()


class Precision:
    """Autocast of the forward pass, loss scaling of the backward pass, and what float32 matmuls may use.

    Args:
        device: where the run computes.
        autocast: `bfloat16`, `float16` or `None` (torch.autocast; off).
        scale_loss: multiply the loss so that small float16 gradients survive (torch.amp.GradScaler).
        matmul: `highest` computes float32 products in float32, `high` in TensorFloat-32.
        parameters: `float32`, or `bfloat16` for weights, buffers and the optimizer's state too.
        fp8: recipe by which linear layers multiply in float8 (torchao): `tensorwise`, `rowwise` or
            `None`.
        emulate: compute float8 products in float32, where the device has none: slow, for trying it out.
        init_scale: first loss scale; halved when a gradient overflows.
        growth_interval: updates without overflow before the scale doubles.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        autocast: str | None,
        scale_loss: bool,
        matmul: str,
        parameters: str,
        fp8: str | None,
        emulate: bool,
        init_scale: float,
        growth_interval: int,
    ) -> None:
        _check_formats(autocast, scale_loss, matmul, parameters, fp8, emulate)
        if not 0 < init_scale < float("inf"):
            raise ConfigError("precision.init_scale", f"needs a number above 0, not {init_scale}")
        if growth_interval < 1:
            raise ConfigError("precision.growth_interval", f"needs a number above 0, not {growth_interval}")
        uses_bf16 = autocast == "bfloat16" or parameters == "bfloat16"
        _require_support(device, uses_bf16=uses_bf16, uses_tf32=matmul == "high")
        if fp8 is not None and not emulate:
            _require_fp8(device)
        self._parameters = _PARAMETERS[parameters]
        self._fp8 = fp8
        self._emulate = emulate
        self._device_type = device.type
        self._dtype = None if autocast is None else _AUTOCAST[autocast]
        self._matmul = matmul
        self.scales_loss = scale_loss
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=init_scale, growth_interval=growth_interval, enabled=scale_loss
        )

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """What matrix products are computed in; None is what the parameters are kept in."""
        return self._dtype

    @property
    def keeps_float32(self) -> bool:
        """Whether the parameters are float32, so that small changes add up in them."""
        return self._parameters is None

    @property
    def tolerance(self) -> float:
        """By how much gradients may differ, relative to their norm, that were computed in another order."""
        if self._fp8 is not None:
            return 0.3
        if self._dtype is not None or self._parameters is not None:
            return 0.05
        return 1e-3 if self._matmul == "highest" else 0.01

    def check_fits(self, task: nn.Module) -> None:
        """Raises ConfigError where nothing of a task could be in float8 as asked for."""
        if self._fp8 is None:
            return
        if importlib.util.find_spec("torchao") is None:
            raise ConfigError("precision", "fp8 needs torchao, which is not installed: pip install torchao")
        if not any(_fits_fp8(module, name) for name, module in task.named_modules()):
            needed = "fp8 is for linear layers whose sizes are multiples of 16, and this model has none"
            raise ConfigError("precision", f"{needed}; use precision=bf16")

    def prepare(self, task: nn.Module) -> nn.Module:
        """The task in the number format of its parameters, its linear layers in float8 where asked for; in place."""
        if self._fp8 is not None:
            _convert_to_fp8(task, self._fp8, self._emulate)
        return task.to(self._parameters)

    def activate(self) -> None:
        """Set the process-wide float32 matmul mode; convolutions follow it."""
        torch.set_float32_matmul_precision(self._matmul)
        torch.backends.cudnn.allow_tf32 = self._matmul != "highest"

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass and its loss."""
        return _AS_IT_IS if self._dtype is None else torch.autocast(self._device_type, dtype=self._dtype)

    def cast(self, batch: Batch) -> Batch:
        """The batch in the number format of the parameters."""
        return batch if self._parameters is None else batch._replace(inputs=batch.inputs.to(self._parameters))

    def backward(
        self, loss: Tensor, weight: Tensor, into: Sequence[Tensor] | None, *, retain_graph: bool
    ) -> None:
        """Add the gradients of `weight * loss` (both of shape ()), scaled, to those of `into`; None is all."""
        gradient = weight if weight.dtype is loss.dtype else weight.to(loss.dtype)
        self.scaler.scale(loss).backward(gradient, retain_graph=retain_graph, inputs=into)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients of an optimizer back to their own scale: once an update, before clipping."""
        self.scaler.unscale_(optimizer)

    def step(self, steps: Mapping[torch.optim.Optimizer, Callable[[int], Any]], num_updates: int) -> bool:
        """Apply update `num_updates`, by the step of every optimizer or, after an overflow in any, by none: False.

        With a loss scaler this synchronises, once. `GradScaler.step` would for each optimizer, and not tell.
        """
        has_overflown = self.scales_loss and self._has_overflown(list(steps))
        if not has_overflown:
            for step in steps.values():
                step(num_updates)
        self.scaler.update()
        return not has_overflown

    def _has_overflown(self, optimizers: list[torch.optim.Optimizer]) -> bool:
        noted = [self.scaler._found_inf_per_device(o) for o in optimizers]  # pyright: ignore[reportPrivateUsage]
        return bool(torch.stack([found for by_device in noted for found in by_device.values()]).any())

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.scaler.load_state_dict(state)


def _check_formats(
    autocast: str | None, scale_loss: bool, matmul: str, parameters: str, fp8: str | None, emulate: bool
) -> None:
    """Refuse names that do not exist and formats that do not go together."""
    if autocast is not None and autocast not in _AUTOCAST:
        raise unknown_name("precision.autocast", "dtype", autocast, _AUTOCAST)
    if matmul not in _MATMUL:
        raise unknown_name("precision.matmul", "setting", matmul, _MATMUL)
    if parameters not in _PARAMETERS:
        raise unknown_name("precision.parameters", "dtype", parameters, _PARAMETERS)
    if fp8 is not None and fp8 not in _FP8:
        raise unknown_name("precision.fp8", "recipe", fp8, _FP8)
    if scale_loss and parameters != "float32":
        raise ConfigError("precision.scale_loss", "the loss scaler needs float32 parameters")
    if parameters == "bfloat16" and autocast is not None:
        raise ConfigError(
            "precision.autocast", "parameters in bfloat16 need none; use precision.autocast=null"
        )
    if emulate and fp8 is None:
        raise ConfigError("precision.emulate", "is for fp8 alone; use precision=fp8")


def _require_support(device: torch.device, *, uses_bf16: bool, uses_tf32: bool) -> None:
    """Refuse what the device cannot do, naming the option that works."""
    tensor_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if uses_tf32 and not tensor_cores:
        raise ConfigError(
            "precision",
            f"tf32 needs CUDA with compute capability 8.0 or more; this is {device}. Use precision=fp32",
        )
    if uses_bf16 and device.type == "cuda" and not tensor_cores:
        raise ConfigError(
            "precision", f"bf16 needs compute capability 8.0 or more ({device}). Use precision=fp16"
        )


def _require_fp8(device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        raise ConfigError(
            "precision",
            f"fp8 needs CUDA with compute capability 8.9 or more; this is {device}. Use precision=bf16, or try it out "
            "slowly with precision.emulate=true",
        )


def _convert_to_fp8(task: nn.Module, recipe: str, emulate: bool) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    # Padded, so that a micro-batch may have any size.
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate, pad_inner_dim=True)
    convert_to_float8_training(task, module_filter_fn=_fits_fp8, config=config)


def _fits_fp8(module: nn.Module, name: str) -> bool:
    """Tensor cores take multiples of 16."""
    del name
    return isinstance(module, nn.Linear) and not (module.in_features % 16 or module.out_features % 16)
