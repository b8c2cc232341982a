"""The update of an optimizer, compiled so that nothing a schedule changes compiles it again.

The learning rate of each group is a 0-dim float64 tensor of its own, written in place: with it every optimizer of
torch computes what it does with a number, bit for bit. What else may be a tensor, what can be applied from the host
and what cannot be compiled at all was found by experiment; tests/test_compiled_updates.py repeats it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydrant.errors import ConfigError, typed_line

log = logging.getLogger("hydrant")

WARM_UP = 3
"""Updates of a process that may compile; what does so later would do it again and again."""

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

_BETAS = ("betas.0", "betas.1")
_TENSORS = {
    "torch.optim.Adam": _BETAS,
    "torch.optim.AdamW": _BETAS,
    "torch.optim.NAdam": ("betas.0",),
    "torch.optim.RAdam": ("betas.0",),
    "torch.optim.Adamax": ("betas.0",),
    "torch.optim.Adadelta": ("rho",),
    "torch.optim.RMSprop": ("alpha",),
    "hydrant.optimizers.MuonWithAdamW": ("momentum", *_BETAS),
    "timm.optim.Adan": ("weight_decay", *_BETAS),
    "timm.optim.Adopt": _BETAS,
    "timm.optim.AdafactorBigVision": ("momentum",),
    "timm.optim.AdamWLegacy": ("weight_decay", *_BETAS),
    "timm.optim.Lion": ("weight_decay", *_BETAS),
    "timm.optim.Mars": ("weight_decay",),
    "timm.optim.Muon": ("weight_decay", "momentum", *_BETAS),
    "timm.optim.NAdamW": ("weight_decay", *_BETAS),
    "timm.optim.SGDW": ("weight_decay",),
}
"""Fields besides lr that an optimizer takes as a tensor."""

_DECAYS = {
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


def compiled_update(
    optimizer: Optimizer, scheduled: Collection[str], arguments: Mapping[str, Any]
) -> Callable[[], Any]:
    """What applies an optimizer's update: compiled by torch.compile with these arguments, or, told once, its own step.

    `scheduled` are the fields of its groups that change from update to update.
    """
    obstacle = why_eager(optimizer, scheduled)
    if obstacle is not None:
        log.warning("the update of %s stays eager: %s", type(optimizer).__name__, obstacle)
        return optimizer.step
    return CompiledUpdate(optimizer, scheduled, arguments)


def why_eager(optimizer: Optimizer, scheduled: Collection[str]) -> str | None:
    """Why the update cannot be compiled without doing so again and again; None where it can."""
    name = _name(optimizer)
    if name in _EAGER:
        return _EAGER[name]
    for field, reason in _KERNELS.items():
        if any(group.get(field) for group in optimizer.param_groups):
            return f"{reason} (optimizer.{field}=true)"
    for field in scheduled:
        is_decay = field == "weight_decay" and name in _DECAYS
        if field != "lr" and not is_decay and field not in _TENSORS.get(name, ()):
            return f"it reads {field} as a number, and each of its values would be compiled anew"
    return None


class CompiledUpdate:
    """Calls the compiled step of an optimizer.

    The first update makes the optimizer's state and stays eager. One that compiles again after `WARM_UP` calls is the
    last compiled one: what it meets is unknown here, and it is told.
    """

    def __init__(
        self, optimizer: Optimizer, scheduled: Collection[str], arguments: Mapping[str, Any]
    ) -> None:
        self._optimizer = optimizer
        self._decays = "weight_decay" in scheduled and _name(optimizer) in _DECAYS
        self._tensors = ["lr", *(field for field in scheduled if field in _TENSORS.get(_name(optimizer), ()))]
        if _BETAS[1] in _TENSORS.get(_name(optimizer), ()) and set(_BETAS) & set(self._tensors):
            self._tensors = [
                *(field for field in self._tensors if field not in _BETAS),
                *_BETAS,
            ]  # both or none
        self._compiled = torch.compile(lambda: optimizer.step(), **arguments)
        self._num_calls = 0
        self._is_compiled = True
        self._use_tensors()

    def __call__(self) -> None:
        self._use_tensors()
        with _DecayFromHost(self._optimizer, self._decays):
            if not self._is_compiled or not self._optimizer.state:
                self._optimizer.step()
            else:
                self._call_compiled()

    def _call_compiled(self) -> None:
        from torch._dynamo.exc import TorchDynamoException
        from torch._dynamo.utils import counters

        self._num_calls += 1
        before = counters["frames"]["total"]
        try:
            self._compiled()
        except TorchDynamoException as error:
            name = type(self._optimizer).__name__
            told = (
                f"the update of {name} cannot be compiled ({typed_line(error)}); use compile.optimizer=false"
            )
            raise ConfigError("compile.optimizer", told) from error
        if self._num_calls > WARM_UP and counters["frames"]["total"] > before:
            self._is_compiled = False
            self._use_numbers()
            log.warning(
                "the update of %s was compiled again in its call %d, and goes on eager",
                type(self._optimizer).__name__,
                self._num_calls,
            )

    def _use_tensors(self) -> None:
        """Groups that inherit a value share it, and a loaded state may hold numbers: each gets its own tensor."""
        if not self._is_compiled:
            return
        seen: set[int] = set()
        for group in self._optimizer.param_groups:
            for field in self._tensors:
                if field.partition(".")[0] not in group:
                    continue
                value = _get(group, field)
                if not isinstance(value, Tensor) or id(value) in seen:
                    value = torch.tensor(float(value), dtype=torch.float64)
                    _set(group, field, value)
                seen.add(id(value))

    def _use_numbers(self) -> None:
        for group in self._optimizer.param_groups:
            for field in self._tensors:
                if field.partition(".")[0] in group:
                    _set(group, field, float(_get(group, field)))


class _DecayFromHost:
    """Applies the weight decay of every group before the update, which then has none; it is put back afterwards."""

    def __init__(self, optimizer: Optimizer, applies: bool) -> None:
        self._groups = optimizer.param_groups if applies else []
        self._shrinks_weights = _DECAYS.get(_name(optimizer), False)

    def __enter__(self) -> None:
        self._values = [float(group["weight_decay"]) for group in self._groups]
        for group, decay in zip(self._groups, self._values, strict=True):
            self._apply(group, decay)
            group["weight_decay"] = 0.0

    def __exit__(self, *_: object) -> None:
        for group, decay in zip(self._groups, self._values, strict=True):
            group["weight_decay"] = decay

    @torch.no_grad()
    def _apply(self, group: Mapping[str, Any], decay: float) -> None:
        weights = [p for p in group["params"] if p.grad is not None]
        if not weights or decay == 0:
            return
        if self._shrinks_weights or group.get("decoupled_weight_decay", False):
            torch._foreach_mul_(weights, 1 - float(group["lr"]) * decay)  # pyright: ignore[reportPrivateUsage]
        else:
            gradients = [p.grad for p in weights]
            torch._foreach_add_(gradients, weights, alpha=decay)  # pyright: ignore[reportPrivateUsage]


def _name(optimizer: Optimizer) -> str:
    kind = type(optimizer)
    return f"{'.'.join(kind.__module__.split('.')[:2])}.{kind.__name__}"


def _get(group: Mapping[str, Any], field: str) -> Any:
    name, _, position = field.partition(".")
    return group[name][int(position)] if position else group[name]


def _set(group: dict[str, Any], field: str, value: Any) -> None:
    name, _, position = field.partition(".")
    if not position:
        group[name] = value
        return
    items = list(group[name])
    items[int(position)] = value
    group[name] = tuple(items)
