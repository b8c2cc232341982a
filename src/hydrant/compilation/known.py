"""Which optimizers compile once, and what of their groups may change then; found by experiment.

tests/test_compiled_updates.py repeats it, docs/compiled-updates.md tells it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch.optim import Optimizer

_EAGER = {
    "torch.optim.Adafactor": "it reads its step counter as a number",
    "torch.optim.SparseAdam": "its gradients are sparse",
    "torch.optim.LBFGS": "it evaluates the loss itself",
    "timm.optim.Adafactor": "its step counter is a number, compiled anew each time",
    "timm.optim.AdamP": "what it does depends on the values of the gradients",
    "timm.optim.SGDP": "what it does depends on the values of the gradients",
    "timm.optim.NvNovoGrad": "it reads its norms as numbers",
    "timm.optim.Kron": "what it does changes from update to update",
    "timm.optim.Lookahead": "what it does changes every few updates",
}

_KERNELS = {"fused": "its fused kernel is one piece already", "foreach": "foreach takes lr as a number"}

BETAS = ("betas.0", "betas.1")
TENSORS = {
    "torch.optim.Adam": BETAS,
    "torch.optim.AdamW": BETAS,
    "torch.optim.NAdam": ("betas.0",),
    "torch.optim.RAdam": ("betas.0",),
    "torch.optim.Adamax": ("betas.0",),
    "torch.optim.Adadelta": ("rho",),
    "torch.optim.RMSprop": ("alpha",),
    "hydrant.optimizers.MuonWithAdamW": ("momentum", *BETAS),
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
"""Fields besides lr that an optimizer takes as a tensor."""

DECAYS = {
    "torch.optim.AdamW": True,
    "hydrant.optimizers.MuonWithAdamW": True,
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
"""What applies its weight decay before all else, so that we may: to the weights (True) or to the gradients."""

_DECOUPLES = ("decoupled_weight_decay", "decoupled_decay", "decoupled")
"""Fields of a group that say which, where there is a choice."""

_OTHERWISE = ("corrected_weight_decay", "fixed_decay", "unscaled_wd")
"""Fields of a group by which its decay is another one than lr times weight_decay."""

_ALSO = (
    "torch.optim.Rprop",
    "timm.optim.Lamb",
    "timm.optim.LaProp",
    "timm.optim.Lars",
)
"""Optimizers of which lr alone may be scheduled."""

KNOWN = frozenset((*TENSORS, *DECAYS, *_ALSO))
"""What compiles once: every other optimizer stays eager."""


def why_eager(optimizer: Optimizer, scheduled: Collection[str], *, as_tensors: bool = True) -> str | None:
    """Why the update cannot be compiled, or not without doing so again and again; None where it can.

    `as_tensors`: what is scheduled is to be a tensor; else nobody minds what compiles again.
    """
    name = name_of(optimizer)
    if name in _EAGER:
        return _EAGER[name]
    if name not in KNOWN:
        return "it is not known whether it compiles once (docs/compiled-updates.md lists what does)"
    for field, reason in _KERNELS.items():
        if any(group.get(field) for group in optimizer.param_groups) and (as_tensors or field == "fused"):
            return f"{reason} (optimizer.{field}=true)"
    decays = all(shrinks_weights(optimizer, group) is not None for group in optimizer.param_groups)
    taken = {"lr", *TENSORS.get(name, ()), *(["weight_decay"] if decays else [])}
    missing = [field for field in scheduled if field not in taken]
    if missing and as_tensors:
        return f"it reads {missing[0]} as a number, and each of its values would be compiled anew"
    return None


def shrinks_weights(optimizer: Optimizer, group: Mapping[str, Any]) -> bool | None:
    """Whether a group's decay, before all else, is of the weights or is added to the gradients; None for neither."""
    own = DECAYS.get(name_of(optimizer))
    if own is None or any(group.get(field) for field in _OTHERWISE):
        return None
    return next((bool(group[field]) for field in _DECOUPLES if field in group), own)


def name_of(optimizer: Optimizer) -> str:
    kind = type(optimizer)
    return f"{'.'.join(kind.__module__.split('.')[:2])}.{kind.__name__}"
