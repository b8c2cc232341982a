"""torch's Muon for the matrices of a model, and AdamW for its other parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.optim import Muon

from hydrant.optimizers.matrices import MatricesWithAdamW, ProductFormat


class MuonWithAdamW(MatricesWithAdamW):
    """Updates matrices with `torch.optim.Muon` (Jordan et al., 2024) and all other parameters with AdamW.

    Muon orthogonalises the update of a matrix, so biases, norms and filters need another rule.
    `adjust_lr_fn="match_rms_adamw"` scales Muon's updates to the size of AdamW's (Liu et al., "Muon is scalable for LLM
    training", 2025), so that both can use the same learning rate and weight decay.

    Args:
        params: parameters or parameter groups.
        lr: learning rate of Muon and AdamW.
        weight_decay: decoupled weight decay of Muon and AdamW.
        momentum, nesterov, ns_steps, ns_coefficients, adjust_lr_fn: arguments of Muon.
        dtype: of the products that orthogonalise.
        betas, eps, fused: arguments of AdamW.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        nesterov: bool,
        ns_steps: int,
        ns_coefficients: tuple[float, float, float],
        adjust_lr_fn: str | None,
        dtype: ProductFormat,
        betas: tuple[float, float],
        eps: float,
        fused: bool | None,
    ) -> None:
        matrices = partial(
            Muon, momentum=momentum, nesterov=nesterov, ns_steps=ns_steps, ns_coefficients=ns_coefficients,
            adjust_lr_fn=adjust_lr_fn,
        )  # fmt: skip
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
