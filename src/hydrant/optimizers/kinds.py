"""Properties of optimizers: what they need from the training loop, and which fields their user sets."""

from __future__ import annotations

import inspect

from torch.optim import Optimizer


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether the optimizer's `step` requires a closure that evaluates the loss."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def has_modes(optimizer: Optimizer) -> bool:
    """Return whether the optimizer has modes to train and to evaluate, such as a schedule-free one."""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


def arguments_of(optimizer: Optimizer) -> frozenset[str]:
    """Return the fields of an optimizer's groups that are arguments of its class, or of the optimizer that it wraps.

    Other fields are internal notes of the optimizer, such as timm's `max_lr_snapshot`.
    """
    kinds = [
        kind for kind in type(optimizer).__mro__ if issubclass(kind, Optimizer) and kind is not Optimizer
    ]
    parameters = [parameter for kind in kinds for parameter in inspect.signature(kind).parameters.values()]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    wrapped = [arguments_of(inner) for inner in vars(optimizer).values() if isinstance(inner, Optimizer)]
    names = {parameter.name for parameter in parameters} | (
        {*optimizer.defaults} if takes_any else set[str]()
    )
    return frozenset(names).union(*wrapped)
