"""Optimizers besides torch's own: those of timm, Muon and its kin for matrices, and sharpness-aware minimisation."""

import functools
import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from torch.overrides import TorchFunctionMode

from hydrant.errors import ConfigError, check_known
from hydrant.extensions.optimizers.split_step import SplitStep
from hydrant.files.plain_values import NotNegative
from hydrant.optimizers.kernels import has_bfloat16, has_modes, needs_closure, total_norm
from hydrant.training.distributed.world import World

PRELOAD = {"NorMuonWithAdamW": ("timm.optim",), "timm_optimizer": ("timm.optim",)}

ProductFormat = Literal["auto", "bfloat16", "float32"]
"""In which format Muon and its kin orthogonalise. `auto`: bfloat16, but float32 on a CPU without its instructions."""

_FORMAT = "dtype"
"""The field of a group that has this format. Checkpoints hold it, so that a run continues in the format it has."""


def choose_format(optimizer: Optimizer, dtype: ProductFormat) -> Optimizer:
    """Write into the groups in which format `orthogonalizing` lets them be orthogonalised; return the optimizer."""
    optimizer.defaults[_FORMAT] = dtype
    for group in optimizer.param_groups:
        fastest = "bfloat16" if all(has_bfloat16(p.device) for p in group["params"]) else "float32"
        group[_FORMAT] = fastest if dtype == "auto" else dtype
    return optimizer


def orthogonalizing(groups: Sequence[Mapping[str, Any]]) -> AbstractContextManager[Any]:
    """Return a context in which code that converts to bfloat16 computes in the format of these groups.

    Muon of torch and of timm have no argument for it. A run from before there was a choice used bfloat16.
    """
    return _InFloat32() if groups[0].get(_FORMAT) == "float32" else nullcontext()


class _InFloat32(TorchFunctionMode):
    """Inside this context, a copy in bfloat16 is one in float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func is Tensor.bfloat16 or (func is Tensor.to and named.get("dtype") is torch.bfloat16):
            return args[0].to(torch.float32, copy=True)  # what follows changes it in place
        return func(*args, **named)


class MatricesWithAdamW(Optimizer):
    """Updates matrices with one optimizer and all other parameters with AdamW.

    Each given group becomes a group of matrices (2-D parameters) and a group of the other parameters. Both use the same
    learning rate and weight decay.

    Args:
        params: parameters or parameter groups.
        matrices: makes the optimizer of the matrices from their groups, `lr` and `weight_decay`.
        lr: learning rate of both.
        weight_decay: decoupled weight decay of both.
        dtype: of the products of matrices.
        betas, eps, fused: arguments of AdamW.
    """

    fuses_adamw = True
    compiled_fields = ("momentum", "betas.0", "betas.1")

    def __init__(
        self,
        params: Any,
        matrices: Callable[..., Optimizer],
        *,
        lr: float,
        weight_decay: float,
        dtype: ProductFormat,
        betas: tuple[float, float],
        eps: float,
        fused: bool | None,
    ) -> None:
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        super().__init__(params, shared)
        self._parts: list[Optimizer] = []
        if groups := _select(self.param_groups, lambda p: p.ndim == 2):
            self._parts.append(choose_format(matrices(groups, **shared), dtype))
        if groups := _select(self.param_groups, lambda p: p.ndim != 2):
            self._parts.append(AdamW(groups, **shared, betas=(betas[0], betas[1]), eps=eps, fused=fused))
        for part in self._parts:
            self.defaults = {**part.defaults, **self.defaults}
        self._share_groups()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply both updates; `closure` as for any torch optimizer."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self._parts:
            apply = inspect.unwrap(type(part).step)  # torch's wrappers break the graph of a compiled update
            with orthogonalizing(part.param_groups):
                apply(part)
        return loss

    def split_step(self, world: World) -> SplitStep:
        """Return the step, spread over the ranks."""
        return SplitStep(self, world)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups: list[dict[str, Any]] = state_dict["param_groups"]
        for part in self._parts:
            part_groups, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            positions = {position for group in part_groups for position in group["params"]}
            state = {position: v for position, v in state_dict["state"].items() if position in positions}
            part.load_state_dict({"state": state, "param_groups": part_groups})
        self._share_groups()

    def _share_groups(self) -> None:
        # The same dicts as in the parts, so that a schedule that writes self.param_groups[i]["lr"] reaches a part.
        self.param_groups = [group for part in self._parts for group in part.param_groups]
        state: Any = _States(*(part.state for part in self._parts))
        self.state = state


class _States(ChainMap[Any, Any]):
    """A read-only view of the states of several optimizers.

    The state of an optimizer is a defaultdict: to look for a weight that it does not have would add one. So a plain
    ChainMap would find an empty state in the first optimizer for a weight of the second.
    """

    def __getitem__(self, key: Any) -> Any:
        return next((states for states in self.maps if key in states), {})[key]


def _select(groups: list[dict[str, Any]], predicate: Callable[[nn.Parameter], bool]) -> list[dict[str, Any]]:
    """Return the groups with only the parameters for which the predicate is true, without empty groups."""
    selected = [{**group, "params": [p for p in group["params"] if predicate(p)]} for group in groups]
    return [group for group in selected if group["params"]]


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
        matrices = functools.partial(
            Muon,
            momentum=momentum,
            nesterov=nesterov,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
            adjust_lr_fn=adjust_lr_fn,
        )
        super().__init__(
            params, matrices, lr=lr, weight_decay=weight_decay, dtype=dtype, betas=betas, eps=eps, fused=fused
        )


COEFFICIENTS: dict[str, list[tuple[float, float, float]]] = {
    "original": [(3.4445, -4.7750, 2.0315)],
    "polar_express": [
        (8.237312490495555, -23.157747414558198, 16.680568411445915),
        (4.082441999064835, -2.893047735332586, 0.5252849256975648),
        (3.9263479922546582, -2.8547468034765298, 0.5318022422894988),
        (3.2982187133085143, -2.424541981026706, 0.48632008358844075),
        (2.2970369434552573, -1.63662558125903, 0.4002628455953627),
        (1.8763805351440397, -1.2347896577722228, 0.35891887501668385),
        (1.8564423485617974, -1.2132449880935525, 0.3568003487825883),
        (1.8749994008682747, -1.2499988017229169, 0.3749994008546422),
    ],
}
"""Coefficients of the iterations that orthogonalise a matrix; the last ones are repeated. `original`: Jordan et al.,
"Muon", 2024. `polar_express`: Amsel et al., "The Polar Express", 2025."""

_RMS_OF_ADAMW = 0.2
"""The usual root mean square of the entries of an AdamW update, divided by lr; Liu et al., 2025."""


class NorMuon(Optimizer):
    """Muon with an equal size of all rows of an update; Li et al., "NorMuon", 2025.

    The momentum `M` of a matrix is orthogonalised: `O`. Each row of `O` is divided by the root of `v`, a moving average
    of the row's mean square. The result is scaled so that the root mean square of its entries is `0.2 * lr`.

    Args:
        params: groups of matrices, or matrices.
        fields: those of `NorMuonWithAdamW` without those of AdamW.
    """

    def __init__(self, params: Any, **fields: Any) -> None:
        from timm.optim.muon import zeropower_via_newtonschulz

        self._orthogonalize: Callable[..., Tensor] = zeropower_via_newtonschulz
        super().__init__(params, fields)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the update; `closure` as for any torch optimizer."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                    state["row_squares"] = torch.zeros_like(p[:, :1])
                update = self._direction(p.grad, state["momentum_buffer"], state["row_squares"], group)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(update * group["lr"])
        return loss

    def _direction(
        self, gradient: Tensor, average: Tensor, row_squares: Tensor, group: dict[str, Any]
    ) -> Tensor:
        """Return the update of a matrix for `lr=1`, and advance both averages."""
        momentum = group["momentum"]
        average.lerp_(gradient, 1 - momentum)
        blend = gradient.lerp(average, momentum) if group["nesterov"] else average
        coefficients = COEFFICIENTS[group["ns_coefficients"]]
        orthogonal = self._orthogonalize(blend, group["ns_steps"], coefficients).to(gradient.dtype)
        row_squares.lerp_(orthogonal.square().mean(-1, keepdim=True), 1 - group["beta2"])
        normalized = orthogonal / (row_squares.sqrt() + 1e-10)
        return normalized * (_RMS_OF_ADAMW * gradient.numel() ** 0.5 / (normalized.norm() + 1e-10))


class NorMuonWithAdamW(MatricesWithAdamW):
    """Updates matrices with NorMuon and all other parameters with AdamW.

    Args:
        params: parameters or parameter groups.
        lr, weight_decay: learning rate and decoupled weight decay of both.
        momentum, beta2: decays of `M` and of `v`.
        nesterov, ns_steps: whether `(1 - momentum) * gradient + momentum * M` is orthogonalised instead of `M`, and in
            how many iterations.
        ns_coefficients, dtype: a name in `COEFFICIENTS`, and the format of the products that orthogonalise.
        betas, eps, fused: arguments of AdamW.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        beta2: float,
        nesterov: bool,
        ns_steps: int,
        ns_coefficients: Literal["original", "polar_express"],
        dtype: ProductFormat,
        betas: tuple[float, float],
        eps: float,
        fused: bool | None,
    ) -> None:
        matrices = functools.partial(
            NorMuon,
            momentum=momentum,
            beta2=beta2,
            nesterov=nesterov,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
        )
        super().__init__(
            params, matrices, lr=lr, weight_decay=weight_decay, dtype=dtype, betas=betas, eps=eps, fused=fused
        )


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
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # pyrefly: ignore[bad-override]  # it needs its closure
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
