"""Any optimizer of the package pytorch_optimizer, by name."""

from __future__ import annotations

import inspect
from typing import Any

from torch.optim import Optimizer

from hydrant.checks import check_known
from hydrant.errors import ConfigError, first_line
from hydrant.imports.distribution import require_extra

_LICENCE = "its licence (CC BY-NC-SA 4.0) forbids commercial use"
_SECOND_ORDER = "it needs second derivatives, which are not computed"
_MODEL = "it takes the whole model instead of parameter groups"
_LOSS = "it evaluates the loss in its own way"
_RANDOM = "it draws random numbers, which would differ from rank to rank"
_STATE = "its state cannot be saved in a checkpoint"
_MATRICES = (
    "its groups must say which weights are matrices; use optimizer=muon, optimizer=normuon or timm's adamuon"
)
_TORCH = "it is torch's own"

LEFT_OUT = {
    "adago": _MATRICES,
    "adahessian": _SECOND_ORDER,
    "adalomo": _MODEL,
    "adam": f"{_TORCH}; use optimizer=adam",
    "adammini": _MODEL,
    "adamuon": _MATRICES,
    "adamw": f"{_TORCH}; use optimizer=adamw",
    "adashift": _STATE,
    "alice": _RANDOM,
    "alig": _LOSS,
    "bsam": _LOSS,
    "conda": _STATE,
    "dash": _RANDOM,
    "demo": "it exchanges gradients between the ranks itself",
    "distributedmuon": _MATRICES,
    "fromage": _LICENCE,
    "gravity": _RANDOM,
    "kron": f"{_RANDOM}; use optimizer=kron",
    "lbfgs": f"{_TORCH}; use optimizer=lbfgs",
    "lomo": _MODEL,
    "magma": _RANDOM,
    "muon": _MATRICES,
    "muonclip": _MATRICES,
    "nadam": f"{_TORCH}; use optimizer=nadam",
    "nero": _LICENCE,
    "normuon": _MATRICES,
    "rmsprop": f"{_TORCH}; use optimizer=rmsprop",
    "scalableshampoo": f"{_STATE}; use optimizer=shampoo",
    "sgd": f"{_TORCH}; use optimizer=sgd",
    "sophiah": _SECOND_ORDER,
    "spam": _RANDOM,
}
"""The optimizers of the package that are refused, with the reason."""

_ONE_RATE = ("dadaptadagrad", "dadaptadam", "dadaptadan", "dadaptlion", "dadaptsgd", "prodigy")
"""Optimizers that estimate one learning rate for all parameters: they would ignore the `lr` of all groups but the
first."""

_OWN_ARGUMENTS = ("self", "params", "kwargs", "maximize")


def library_optimizer(
    params: list[dict[str, Any]], *, name: str, lr: float, weight_decay: float | None, **arguments: Any
) -> Optimizer:
    """Return the optimizer of pytorch_optimizer with this name.

    Args:
        params: parameter groups.
        name: a name of `pytorch_optimizer.get_supported_optimizers()`. Those in `LEFT_OUT` are refused.
        weight_decay: None: the default of the optimizer.
        arguments: its other arguments.

    Raises:
        ConfigError: the package is missing; the name or an argument is unknown; the optimizer is left out, or refuses
            an argument.
    """
    require_extra("optimizers", ["pytorch_optimizer"], "optimizer", "an optimizer of pytorch_optimizer")
    import pytorch_optimizer

    if name in LEFT_OUT:
        raise ConfigError("optimizer.name", f"{name} of pytorch_optimizer is left out: {LEFT_OUT[name]}")
    names = library_names()
    check_known("optimizer.name", "optimizer of pytorch_optimizer", name, names)
    kind: Any = pytorch_optimizer.load_optimizer(name)
    if weight_decay is not None:
        arguments = {"weight_decay": weight_decay, **arguments}
    _check_arguments(name, kind, arguments)
    try:
        optimizer: Optimizer = kind(params, lr=lr, **arguments)
    except Exception as error:  # the package has exceptions of its own, which are not ValueErrors
        message = f"{name} of pytorch_optimizer cannot be built: {first_line(error) or type(error).__name__}"
        raise ConfigError("optimizer", message) from error
    if name in _ONE_RATE:
        optimizer.register_step_pre_hook(_check_one_rate)
    return optimizer


def _check_one_rate(optimizer: Optimizer, *_: Any) -> None:
    rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
    if len(rates) > 1:
        needed = f"{type(optimizer).__name__} has one lr for all parameter groups"
        raise ConfigError("param_groups", f"{needed}, not {rates[0]:g} and {rates[-1]:g}")


def library_names() -> list[str]:
    """Return the names of the optimizers of pytorch_optimizer, without those that are left out."""
    import pytorch_optimizer

    return [name for name in pytorch_optimizer.get_supported_optimizers() if name not in LEFT_OUT]


def _check_arguments(name: str, kind: type[Optimizer], arguments: dict[str, Any]) -> None:
    """Raise ConfigError for an argument that the optimizer does not have: most of them ignore unknown ones."""
    known = [word for word in inspect.signature(kind).parameters if word not in _OWN_ARGUMENTS]
    for argument, value in arguments.items():
        if argument == "weight_decay" and argument not in known:
            message = f"{name} has no weight decay; use optimizer.weight_decay=null, not {value}"
            raise ConfigError("optimizer.weight_decay", message)
        check_known(f"optimizer.{argument}", f"argument of {name}", argument, known)
