"""Which optimizers compile once, and what of their groups may change then; found by experiment.

tests/test_compiled_updates.py repeats it, docs/compiled-updates.md tells it.
"""

from __future__ import annotations

from collections.abc import Collection

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
"""What applies its weight decay before all else, so that the host may: to the weights (True) or to the gradients."""


_ALSO = (
    "torch.optim.Rprop",
    "timm.optim.Lamb",
    "timm.optim.LaProp",
    "timm.optim.Lars",
)
"""Optimizers of which lr alone may be scheduled."""

KNOWN = frozenset((*TENSORS, *DECAYS, *_ALSO))
"""What compiles once: every other optimizer stays eager."""


def why_eager(optimizer: Optimizer, scheduled: Collection[str]) -> str | None:
    """Why the update cannot be compiled without doing so again and again; None where it can."""
    name = name_of(optimizer)
    if name in _EAGER:
        return _EAGER[name]
    if name not in KNOWN:
        return "it is not known whether it compiles once (docs/compiled-updates.md lists what does)"
    for field, reason in _KERNELS.items():
        if any(group.get(field) for group in optimizer.param_groups):
            return f"{reason} (optimizer.{field}=true)"
    for field in scheduled:
        is_decay = field == "weight_decay" and name in DECAYS
        if field != "lr" and not is_decay and field not in TENSORS.get(name, ()):
            return f"it reads {field} as a number, and each of its values would be compiled anew"
    return None


def name_of(optimizer: Optimizer) -> str:
    kind = type(optimizer)
    return f"{'.'.join(kind.__module__.split('.')[:2])}.{kind.__name__}"
