"""NorMuon for the matrices of a model, and AdamW for its other parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydrant.checks import check_known
from hydrant.optimizers.matrices import MatricesWithAdamW, ProductFormat

COEFFICIENTS: dict[str, list[tuple[float, float, float]]] = {
    "original": [(3.4445, -4.7750, 2.0315)],
    "polar_express": [
        (8.237312490495555, -23.157747414558198, 16.680568411445915),
        (4.082441999064835, -2.893047735332586, 0.5252849256975648),
        (3.9263479922546582, -2.8547468034765298, 0.5318022422894988),
        (3.2982187133085143, -2.424541981026706, 0.48632008358844075),
        (2.2970369434552573, -1.63662558125903, 0.4002628455953627),
        (1.8763805351440397, -1.2347896577722228, 0.35891887501668385),
        (1.8564423485617974, -1.2132449880935525, 0.3568003487825883),
        (1.8749994008682747, -1.2499988017229169, 0.3749994008546422),
    ],
}
"""Coefficients of the iterations that orthogonalise a matrix; the last ones are repeated. `original`: Jordan et al.,
"Muon", 2024. `polar_express`: Amsel et al., "The Polar Express", 2025."""

PRELOAD = {"NorMuonWithAdamW": ("timm.optim",)}

_RMS_OF_ADAMW = 0.2
"""The usual root mean square of the entries of an AdamW update, divided by lr; Liu et al., 2025."""


class NorMuon(Optimizer):
    """Muon with an equal size of all rows of an update; Li et al., "NorMuon", 2025.

    The momentum `M` of a matrix is orthogonalised: `O`. Each row of `O` is divided by the root of `v`, a moving average
    of the row's mean square. The result is scaled so that the root mean square of its entries is `0.2 * lr`.

    Args:
        params: groups of matrices, or matrices.
        lr: learning rate.
        weight_decay: decoupled weight decay.
        momentum: decay of `M`.
        beta2: decay of `v`.
        nesterov: orthogonalise `(1 - momentum) * gradient + momentum * M` instead of `M`.
        ns_steps: iterations of the orthogonalisation.
        ns_coefficients: a name in `COEFFICIENTS`.

    Raises:
        ConfigError: the coefficients are unknown.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        beta2: float,
        nesterov: bool,
        ns_steps: int,
        ns_coefficients: str,
    ) -> None:
        check_known("optimizer.ns_coefficients", "coefficients", ns_coefficients, COEFFICIENTS)
        from timm.optim.muon import zeropower_via_newtonschulz

        self._orthogonalize: Callable[..., Tensor] = zeropower_via_newtonschulz
        fields = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "beta2": beta2}
        how = {"nesterov": nesterov, "ns_steps": ns_steps, "ns_coefficients": ns_coefficients}
        super().__init__(params, {**fields, **how})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the update; `closure` as for any torch optimizer."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                    state["row_squares"] = torch.zeros_like(p[:, :1])
                update = self._direction(p.grad, state["momentum_buffer"], state["row_squares"], group)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(update * group["lr"])
        return loss

    def _direction(
        self, gradient: Tensor, average: Tensor, row_squares: Tensor, group: dict[str, Any]
    ) -> Tensor:
        """Return the update of a matrix for `lr=1`, and advance both averages."""
        momentum = group["momentum"]
        average.lerp_(gradient, 1 - momentum)
        blend = gradient.lerp(average, momentum) if group["nesterov"] else average
        coefficients = COEFFICIENTS[group["ns_coefficients"]]
        orthogonal = self._orthogonalize(blend, group["ns_steps"], coefficients).to(gradient.dtype)
        row_squares.lerp_(orthogonal.square().mean(-1, keepdim=True), 1 - group["beta2"])
        normalized = orthogonal / (row_squares.sqrt() + 1e-10)
        return normalized * (_RMS_OF_ADAMW * gradient.numel() ** 0.5 / (normalized.norm() + 1e-10))


class NorMuonWithAdamW(MatricesWithAdamW):
    """Updates matrices with NorMuon and all other parameters with AdamW; arguments as of these two."""

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        beta2: float,
        nesterov: bool,
        ns_steps: int,
        ns_coefficients: str,
        dtype: ProductFormat,
        betas: tuple[float, float],
        eps: float,
        fused: bool | None,
    ) -> None:
        matrices = partial(
            NorMuon,
            momentum=momentum,
            beta2=beta2,
            nesterov=nesterov,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
        )
        super().__init__(
            params,
            matrices,
            lr=lr,
            weight_decay=weight_decay,
            dtype=dtype,
            betas=betas,
            eps=eps,
            fused=fused,
        )
