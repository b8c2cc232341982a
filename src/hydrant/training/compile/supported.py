"""Optimizers whose step compiles once, and the fields of their groups that may change then.

All of it was found by experiment, which tests/training/compile/test_compiled_step.py repeats.
docs/internals/compiled-updates.md shows it as a table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch.optim import Optimizer

_EAGER_REASONS = {
    "torch.optim.Adafactor": "it reads its step counter as a number",
    "torch.optim.SparseAdam": "its gradients are sparse",
    "torch.optim.LBFGS": "it evaluates the loss itself",
    "hydrant.optimizers.Sam": "it evaluates the loss itself",
    "timm.optim.Adafactor": "its step counter is a number, and each value would be compiled again",
    "timm.optim.AdamP": "its operations depend on the values of the gradients",
    "timm.optim.SGDP": "its operations depend on the values of the gradients",
    "timm.optim.NvNovoGrad": "it reads its norms as numbers",
    "timm.optim.Kron": "its operations change from update to update",
    "timm.optim.Lookahead": "its operations change every few updates",
}

_KERNEL_REASONS = {
    "fused": "its fused kernel needs no compilation",
    "foreach": "its foreach kernel takes lr as a number",
}

BETAS = ("betas.0", "betas.1")
TENSOR_FIELDS = {
    "torch.optim.Adam": BETAS,
    "torch.optim.AdamW": BETAS,
    "torch.optim.NAdam": ("betas.0",),
    "torch.optim.RAdam": ("betas.0",),
    "torch.optim.Adamax": ("betas.0",),
    "torch.optim.Adadelta": ("rho",),
    "torch.optim.RMSprop": ("alpha",),
    "hydrant.optimizers.MuonWithAdamW": ("momentum", *BETAS),
    "hydrant.optimizers.NorMuonWithAdamW": ("momentum", *BETAS),
    "timm.optim.Adan": ("weight_decay", *BETAS),
    "timm.optim.Adopt": BETAS,
    "timm.optim.AdafactorBigVision": ("momentum",),
    "timm.optim.AdamWLegacy": ("weight_decay", *BETAS),
    "timm.optim.Lion": ("weight_decay", *BETAS),
    "timm.optim.Mars": ("weight_decay",),
    "timm.optim.Muon": ("weight_decay", "momentum", *BETAS),
    "timm.optim.NAdamW": ("weight_decay", *BETAS),
    "timm.optim.SGDW": ("weight_decay",),
}
"""Fields besides lr that may be tensors."""

SHRINKS_WEIGHTS = {
    "torch.optim.AdamW": True,
    "hydrant.optimizers.MuonWithAdamW": True,
    "hydrant.optimizers.NorMuonWithAdamW": True,
    "timm.optim.AdaBelief": True,
    "timm.optim.AdafactorBigVision": True,
    "torch.optim.Adadelta": False,
    "torch.optim.Adagrad": False,
    "torch.optim.Adam": False,
    "torch.optim.Adamax": False,
    "torch.optim.ASGD": False,
    "torch.optim.NAdam": False,
    "torch.optim.RAdam": False,
    "torch.optim.RMSprop": False,
    "torch.optim.SGD": False,
    "timm.optim.Adopt": False,
    "timm.optim.MADGRAD": False,
    "timm.optim.RMSpropTF": False,
}
"""Optimizers that begin with their weight decay, so that CompiledWeightDecay can do it instead.

True: they shrink the weights. False: they add the decay to the gradients.
"""

_DECOUPLED_FIELDS = ("decoupled_weight_decay", "decoupled_decay", "decoupled")
"""The field of a group that chooses between the two ways, in optimizers that have both."""

_OTHER_DECAY_FIELDS = ("corrected_weight_decay", "fixed_decay", "unscaled_wd")
"""Fields of a group that, if true, make its decay another product than lr times weight_decay."""

_ONLY_LR = ("torch.optim.Rprop", "timm.optim.Lamb", "timm.optim.LaProp", "timm.optim.Lars")
"""Other optimizers that compile once, if only their lr is scheduled."""

COMPILED = frozenset((*TENSOR_FIELDS, *SHRINKS_WEIGHTS, *_ONLY_LR))
"""Optimizers that compile once. All others stay eager."""


def why_eager(optimizer: Optimizer, scheduled: Collection[str], *, as_tensors: bool = True) -> str | None:
    """Return why the step cannot be compiled, or would be recompiled again and again; None if it compiles once.

    `as_tensors`: scheduled fields become tensors. Without it, recompilations are accepted.
    """
    name = optimizer_name(optimizer)
    if name in _EAGER_REASONS:
        return _EAGER_REASONS[name]
    if name not in COMPILED:
        return "it is not known whether it compiles once"
    for field, reason in _KERNEL_REASONS.items():
        if any(group.get(field) for group in optimizer.param_groups) and (as_tensors or field == "fused"):
            return f"{reason} (optimizer.{field}=true)"
    decays = all(shrinks_weights(optimizer, group) is not None for group in optimizer.param_groups)
    supported = {"lr", *TENSOR_FIELDS.get(name, ()), *(["weight_decay"] if decays else [])}
    unsupported = [field for field in scheduled if field not in supported]
    if unsupported and as_tensors:
        return f"it reads {unsupported[0]} as a number, and each value would be compiled again"
    return None


def shrinks_weights(optimizer: Optimizer, group: Mapping[str, Any]) -> bool | None:
    """Return True if the step of a group begins by shrinking the weights, False if by adding decay to the gradients.

    None: the step applies weight decay elsewhere or in another way.
    """
    default = SHRINKS_WEIGHTS.get(optimizer_name(optimizer))
    if default is None or any(group.get(field) for field in _OTHER_DECAY_FIELDS):
        return None
    return next((bool(group[field]) for field in _DECOUPLED_FIELDS if field in group), default)


def optimizer_name(optimizer: Optimizer) -> str:
    """Return the public name of an optimizer's class, such as `torch.optim.AdamW`."""
    kind = type(optimizer)
    return f"{'.'.join(kind.__module__.split('.')[:2])}.{kind.__name__}"
