"""Optimizers around others: those of timm by name, and sharpness-aware minimisation over any optimizer."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.errors import ConfigError, check_known
from hydrant.extensions.optimizers.matrices import ProductFormat, choose_format, orthogonalizing
from hydrant.extensions.optimizers.split_step import SplitStep
from hydrant.files.plain_values import NotNegative
from hydrant.optimizers.clipping import total_norm
from hydrant.optimizers.kernels import has_modes, needs_closure
from hydrant.training.distributed.world import World

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
        ConfigError: the name is unknown.
    """
    import timm.optim

    bare = name.removeprefix("lookahead_")
    check_known("optimizer.name", "timm optimizer", bare, list(map(str, timm.optim.list_optimizers())))
    made = timm.optim.create_optimizer_v2(params, opt=bare, lr=lr, weight_decay=weight_decay, **kwargs)
    if isinstance(made, timm.optim.Muon):
        made = choose_format(_muon()(made.param_groups, **made.defaults), dtype)
    return made if bare == name else timm.optim.Lookahead(made)


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

        def split_step(self, world: World) -> SplitStep:
            return SplitStep(self, world)

    Muon.__module__ = TimmMuon.__module__
    return Muon


class Sam(Optimizer):
    """Updates the weights `w` with the gradient at `w + e`, where the loss is higher.

    `e = rho * g / |g|` with the gradient `g` at `w` (Foret et al., "Sharpness-aware minimization", 2021). With
    `adaptive`, `e = rho * w**2 * g / |w * g|` (Kwon et al., "ASAM", 2021). Each update evaluates the loss and its
    gradient twice. With several ranks, both gradients are those of all ranks together.

    Args:
        params: parameters or parameter groups.
        lr: learning rate of `base`.
        rho: distance to the point of the second gradient: the length of `e`.
        adaptive: True: larger weights move further (Kwon et al., 2021).
        base: the optimizer that makes the update. It is called with parameter groups and `lr`.

    Raises:
        ConfigError: `base` evaluates the loss itself, or has modes to train and to evaluate.
    """

    def __init__(
        self, params: Any, *, lr: float, rho: NotNegative, adaptive: bool, base: Callable[..., Optimizer]
    ) -> None:
        super().__init__(params, {"lr": lr, "rho": rho, "adaptive": adaptive})
        self._base = base(self.param_groups, lr=lr)
        if needs_closure(self._base) or has_modes(self._base):
            kind = type(self._base).__name__
            message = f"{kind} evaluates the loss or changes the weights itself"
            raise ConfigError("optimizer.base", message, remedy="choose one such as sgd or adamw")
        self.defaults = {**self._base.defaults, **self.defaults}
        self._share_groups()

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Tensor]
    ) -> Tensor:
        """Make an update. `closure` computes the gradients and returns the loss; the one at `w` is returned."""
        with torch.enable_grad():
            loss = closure()
        weights = [(p, p.clone()) for group in self.param_groups for p in group["params"]]
        self._climb()
        with torch.enable_grad():
            closure()
        for parameter, value in weights:
            parameter.copy_(value)
        self._base.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return self._base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._base.load_state_dict(state_dict)
        self._share_groups()

    def _climb(self) -> None:
        """Add `e` to the weights."""
        moves: list[tuple[nn.Parameter, Tensor, float]] = []
        scaled: list[Tensor] = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    scaled.append(p.abs() * p.grad if group["adaptive"] else p.grad)
                    move = p.abs() * scaled[-1] if group["adaptive"] else p.grad
                    moves.append((p, move, group["rho"]))
        if moves:
            norm = total_norm(scaled) + 1e-12
            for parameter, move, rho in moves:
                parameter.add_(move * (rho / norm))

    def _share_groups(self) -> None:
        # The same dicts as in the base, so that a schedule that writes self.param_groups[i]["lr"] reaches it.
        self.param_groups = self._base.param_groups
        self.state = self._base.state
