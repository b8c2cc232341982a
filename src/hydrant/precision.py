"""Number formats of the forward and backward pass, with the loss scaler that fp16 needs.

fp32 is the plain case: no autocast, and a scaler that is switched off.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from hydrant.errors import ConfigError, unknown_name

_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_MATMUL = ("highest", "high")


class Precision:
    """Autocast of the forward pass, loss scaling of the backward pass, and what float32 matmuls may use.

    Args:
        device: where the run computes.
        autocast: `bfloat16`, `float16` or `None` (torch.autocast; off).
        scale_loss: multiply the loss so that small float16 gradients survive (torch.amp.GradScaler).
        matmul: `highest` computes float32 products in float32, `high` in TensorFloat-32.
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
        init_scale: float,
        growth_interval: int,
    ) -> None:
        if autocast is not None and autocast not in _AUTOCAST:
            raise unknown_name("precision.autocast", "dtype", autocast, _AUTOCAST)
        if matmul not in _MATMUL:
            raise unknown_name("precision.matmul", "setting", matmul, _MATMUL)
        _require_support(device, autocast, matmul)
        self._device_type = device.type
        self._dtype = None if autocast is None else _AUTOCAST[autocast]
        self._matmul = matmul
        self.scales_loss = scale_loss
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=init_scale, growth_interval=growth_interval, enabled=scale_loss
        )

    def activate(self) -> None:
        """Set the process-wide float32 matmul mode; convolutions follow it."""
        torch.set_float32_matmul_precision(self._matmul)
        torch.backends.cudnn.allow_tf32 = self._matmul != "highest"

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass and its loss."""
        return torch.autocast(
            self._device_type, dtype=self._dtype or torch.bfloat16, enabled=self._dtype is not None
        )

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """Add the gradients of `weight * loss` (both of shape ()) to the parameters', scaled."""
        self.scaler.scale(loss).backward(weight)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients of an optimizer back to their own scale: once an update, before clipping."""
        self.scaler.unscale_(optimizer)

    def step(self, optimizers: list[torch.optim.Optimizer]) -> bool:
        """Apply the unscaled gradients, of all optimizers or, after an overflow in any, of none: False.

        With a loss scaler this synchronises, once. `GradScaler.step` would for each optimizer, and not tell.
        """
        has_overflown = self.scales_loss and self._has_overflown(optimizers)
        if not has_overflown:
            for optimizer in optimizers:
                optimizer.step()
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


def _require_support(device: torch.device, autocast: str | None, matmul: str) -> None:
    """Refuse what the device cannot do, naming the option that works."""
    tensor_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if matmul == "high" and not tensor_cores:
        raise ConfigError(
            "precision",
            f"tf32 needs CUDA with compute capability 8.0 or more; this is {device}. Use precision=fp32",
        )
    if autocast == "bfloat16" and device.type == "cuda" and not tensor_cores:
        raise ConfigError(
            "precision", f"bf16 needs compute capability 8.0 or more ({device}). Use precision=fp16"
        )
