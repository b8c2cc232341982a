"""Optimizers of pytorch_optimizer by name."""

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from hydrant.errors import ConfigError, check_known
from hydrant.files.read_file import load_config
from hydrant.installation import require_extra


@functools.cache
def _table() -> Mapping[str, Any]:
    """Return the table of library.yaml, which describes it: `left_out` and `one_rate`."""
    return load_config(Path(__file__).with_name("library.yaml").read_text(encoding="utf-8"))


_OWN_ARGUMENTS = ("self", "params", "kwargs", "maximize")


def library_optimizer(
    params: list[dict[str, Any]], *, name: str, lr: float, weight_decay: float | None, **arguments: Any
) -> Optimizer:
    """Return the optimizer of pytorch_optimizer with this name.

    Args:
        params: parameter groups.
        name: a name of `pytorch_optimizer.get_supported_optimizers()`. Those that library.yaml leaves out are refused.
        weight_decay: None: the default of the optimizer.
        arguments: its other arguments.

    Raises:
        ConfigError: the package is missing; the name or an argument is unknown; the optimizer is left out.
    """
    require_extra("optimizers", ["pytorch_optimizer"], "optimizer", "an optimizer of pytorch_optimizer")
    import pytorch_optimizer

    left_out = _table()["left_out"]
    if name in left_out:
        raise ConfigError("optimizer.name", f"{name} of pytorch_optimizer is left out: {left_out[name]}")
    names = [word for word in pytorch_optimizer.get_supported_optimizers() if word not in left_out]
    check_known("optimizer.name", "optimizer of pytorch_optimizer", name, names)
    kind: Any = pytorch_optimizer.load_optimizer(name)
    if weight_decay is not None:
        arguments = {"weight_decay": weight_decay, **arguments}
    known = [word for word in inspect.signature(kind).parameters if word not in _OWN_ARGUMENTS]
    for argument in arguments:  # most optimizers ignore unknown ones
        check_known(f"optimizer.{argument}", f"argument of {name}", argument, known)
    optimizer: Optimizer = kind(params, lr=lr, **arguments)
    if name in _table()["one_rate"]:
        optimizer.register_step_pre_hook(_check_one_rate)
    return optimizer


def _check_one_rate(optimizer: Optimizer, *_: Any) -> None:
    rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
    if len(rates) > 1:
        needed = f"{type(optimizer).__name__} has one lr for all parameter groups"
        raise ConfigError("param_groups", f"{needed}, not {rates[0]:g} and {rates[-1]:g}")
