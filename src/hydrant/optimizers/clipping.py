"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hydrant.errors import ConfigError
from hydrant.optimizers.norms import local_tensors, total_norm


@dataclass(frozen=True)
class Clipping:
    """Clips the unscaled gradients of an update by at most one of three limits; without a limit it does nothing.

    Args:
        max_norm: limit of the 2-norm of all gradients together (Pascanu et al., 2013; torch's `clip_grad_norm_`).
        max_value: limit of the absolute value of each entry (torch's `clip_grad_value_`).
        agc: adaptive gradient clipping: limit of the ratio between the gradient norm and the weight norm of each unit
            (Brock et al., "High-performance large-scale image recognition without normalization", 2021; timm's
            `adaptive_clip_grad`).
        head: `id`s of the parameters of the last layer, which `agc` does not clip.

    Raises:
        ConfigError: two limits are given.
    """

    max_norm: float | None = None
    max_value: float | None = None
    agc: float | None = None
    head: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        chosen = [key for key, limit in self._limits.items() if limit is not None]
        if len(chosen) > 1:
            raise ConfigError(
                chosen[1], f"gradients are clipped by {chosen[0]} already", remedy="give one of the two"
            )

    @property
    def key(self) -> str | None:
        """The config key of the limit; None without one."""
        return next((key for key, limit in self._limits.items() if limit is not None), None)

    @property
    def _limits(self) -> dict[str, float | None]:
        return {"max_grad_norm": self.max_norm, "max_grad_value": self.max_value, "agc": self.agc}

    def __call__(self, parameters: Sequence[nn.Parameter], norm: Tensor | None) -> None:
        """Clip in place. `norm`, shape (), is the norm of all gradients; only `max_norm` needs it."""
        gradients = local_gradients(parameters)
        if self.max_norm is not None and norm is not None and gradients:
            torch._foreach_mul_(gradients, norm_ratio(norm, self.max_norm))  # pyright: ignore[reportPrivateUsage]
        if self.max_value is not None and gradients:
            torch._foreach_clamp_min_(gradients, -self.max_value)  # pyright: ignore[reportPrivateUsage]
            torch._foreach_clamp_max_(gradients, self.max_value)  # pyright: ignore[reportPrivateUsage]
        if self.agc is not None:
            from timm.utils.agc import adaptive_clip_grad

            adaptive_clip_grad([p for p in parameters if id(p) not in self.head], clip_factor=self.agc)


def norm_ratio(norm: Tensor, max_norm: float | Tensor) -> Tensor:
    """Return what gradients are multiplied by so that their norm is at most `max_norm`; it is 1 if it already is.

    Args:
        norm: shape (), or of each lane of a stack, (lanes,).
        max_norm: a number, or one for each lane, (lanes,).
    """
    # Without a branch, which would wait for the device. torch divides a number by a tensor like this; dividing one
    # tensor by another rounds in another way.
    return ((norm + 1e-6).reciprocal() * max_norm).to(norm.dtype).clamp(max=1.0)


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the 2-norm of all gradients together, shape (). If some are sharded, all ranks must call this together."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])


def local_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients that there are, or this rank's shards of them."""
    return local_tensors(p.grad for p in parameters if p.grad is not None)
