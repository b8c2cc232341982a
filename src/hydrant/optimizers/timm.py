"""Any optimizer of timm, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch

from hydrant.checks import unknown_name
from hydrant.errors import ConfigError, first_line
from hydrant.optimizers.matrices import ProductFormat, choose_format, orthogonalizing

PRELOAD = {"timm_optimizer": ("timm.optim",)}


def timm_optimizer(
    params: list[dict[str, Any]],
    *,
    name: str,
    lr: float,
    weight_decay: float,
    kwargs: Mapping[str, Any],
    dtype: ProductFormat = "auto",
) -> torch.optim.Optimizer:
    """Return `timm.optim.create_optimizer_v2(params, opt=name, ...)`.

    Args:
        params: parameter groups.
        name: a name of `timm.optim.list_optimizers()`. It may begin with timm's prefix `lookahead_`. Some optimizers
            (`bnb...`, `fused...`) need additional packages.
        kwargs: arguments of this optimizer.
        dtype: of the products by which muon, adamuon and their kin orthogonalise.

    Raises:
        ConfigError: the name is unknown, a package is missing, or timm cannot build the optimizer.
    """
    import timm.optim

    names = [str(known) for known in timm.optim.list_optimizers()]
    if name.removeprefix("lookahead_") not in names:
        raise unknown_name("optimizer.name", "timm optimizer", name, names)
    try:
        _require_opt_einsum(name)
        made = timm.optim.create_optimizer_v2(params, opt=name, lr=lr, weight_decay=weight_decay, **kwargs)
    except (TypeError, ValueError, AssertionError, RuntimeError, ImportError) as error:
        remedy = "choose another optimizer.name, or other optimizer.kwargs"
        message = f"timm's {name} cannot be built ({first_line(error)}); {remedy}"
        raise ConfigError("optimizer.name", message) from error
    if not isinstance(made, timm.optim.Muon):
        return made
    return choose_format(_muon()(made.param_groups, **made.defaults), dtype)


@functools.cache
def _muon() -> type[torch.optim.Optimizer]:
    """Return timm's Muon, whose products have the format of its groups."""
    from timm.optim import Muon as TimmMuon

    step: Any = inspect.unwrap(TimmMuon.step)

    class Muon(TimmMuon):
        @torch.no_grad()
        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            with torch.enable_grad():
                loss = None if closure is None else closure()
            with orthogonalizing(self.param_groups):
                step(self)
            return loss

    Muon.__module__ = TimmMuon.__module__
    return Muon


def _require_opt_einsum(name: str) -> None:
    """Raise ConfigError for PSGD Kron without opt_einsum, because its products then take gigabytes."""
    from timm.optim import get_optimizer_class
    from timm.optim.kron import Kron

    kind = get_optimizer_class(name.removeprefix("lookahead_"), bind_defaults=False)
    if isinstance(kind, type) and issubclass(kind, Kron) and find_spec("opt_einsum") is None:
        message = (
            f"timm's {name} takes gigabytes of memory without the package opt_einsum: pip install opt_einsum"
        )
        raise ConfigError("optimizer.name", message)
