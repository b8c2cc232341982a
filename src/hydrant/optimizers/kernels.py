"""The kernels of optimizers, what else Hydrant knows of these, and the norms and clipping of gradients.

torch's fused kernels are called without the Python around them, which takes longer than the kernel of a small model.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks  # noqa: PLC2701  # a step calls them
from torch.utils._pytree import tree_leaves_with_path  # noqa: PLC2701  # no public one has paths

from hydrant.batch import as_real

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

KERNEL_FIELDS = ("foreach", "fused")
"""Fields of parameter groups that choose a kernel. They belong to the process, not to the state of an optimizer."""

_FOREACH_IF_SHARDED = frozenset((SGD, Adagrad, RMSprop, Adadelta, Adamax, ASGD, NAdam, RAdam))
"""Optimizers whose foreach operations DTensor has. It lacks Rprop's `_foreach_copy_`, for example."""

_DENSE = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)

_Groups = Sequence[Mapping[str, Any]]

_FUSED: Mapping[Any, Callable[[_Groups, Sequence[Tensor]], bool]] = {
    Adam: lambda settings, parameters: True,
    AdamW: lambda settings, parameters: True,
    SGD: lambda settings, parameters: (  # see _begin_momentum
        not any(map(is_sharded, parameters)) and not any(s.get("dampening") for s in settings)
    ),
    Adagrad: lambda settings, parameters: all(p.is_cpu and not is_sharded(p) for p in parameters),
}
"""Optimizers with a fused kernel, and whether it takes these arguments and parameters."""


def with_fastest_kernel(
    factory: partial[Any], sparse: Collection[int] = ()
) -> Callable[[_Groups], Optimizer]:
    """Return a function that builds an optimizer of parameter groups like `factory`, with torch's fastest kernel.

    This is the fused kernel where it exists. For sharded weights without it, it is the foreach kernel, because torch
    would update them one by one. An optimizer for which the config sets `fused`, `foreach` or `differentiable`, and
    one that is not torch's, remains as it is.

    Args:
        factory: the optimizer's class, with the arguments of the config.
        sparse: the `id` of parameters with sparse gradients, which the fused kernels cannot read.
    """

    def build(groups: _Groups) -> Optimizer:
        kernel = _kernel(factory, groups, sparse)
        optimizer = factory(groups, **kernel)
        if factory.func is SGD and kernel.get("fused"):
            _begin_momentum(optimizer)
            optimizer.register_load_state_dict_post_hook(_begin_momentum)
        return optimizer

    return build


def _begin_momentum(optimizer: Any) -> None:
    """Set the momentum of every weight that has none to 0. torch would set it to the first gradient instead.

    Without dampening, both give the same updates. But torch's fused kernel fails if some weights receive their first
    gradient in a later update than others.
    """
    for group in optimizer.param_groups:
        if group["momentum"] != 0:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)


def _kernel(factory: partial[Any], groups: _Groups, sparse: Collection[int]) -> dict[str, bool]:
    kind, settings = factory.func, (factory.keywords, *groups)
    if any(s.get("differentiable") or any(s.get(f) is not None for f in KERNEL_FIELDS) for s in settings):
        return {}
    parameters = [p for group in groups for p in group["params"]]
    fuses = _FUSED[kind](settings, parameters) if kind in _FUSED else getattr(kind, "fuses_adamw", False)
    # On the CPU, the kernels read memory without its strides.
    are_dense = (any(p.is_contiguous(memory_format=f) for f in _DENSE) for p in local_tensors(parameters))
    if fuses and all(p.is_floating_point() and id(p) not in sparse for p in parameters) and all(are_dense):
        return {"fused": True}
    return {"foreach": True} if kind in _FOREACH_IF_SHARDED and any(map(is_sharded, parameters)) else {}


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16. A CPU without them takes 10 times as long or more."""
    has = torch.cpu.get_capabilities() if device.type == "cpu" else {"bf16": True}
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last on ARM


def needs_closure(optimizer: Optimizer) -> TypeGuard[Any]:
    """Return whether the optimizer's `step` requires a closure that evaluates the loss."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def has_modes(optimizer: Optimizer) -> TypeGuard[Any]:
    """Return whether the optimizer has modes to train and to evaluate, such as a schedule-free one."""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


def arguments_of(optimizer: Optimizer) -> frozenset[str]:
    """Return the fields of an optimizer's groups that are arguments of its class, or of the optimizer that it wraps.

    Other fields are internal notes of the optimizer, such as timm's `max_lr_snapshot`.
    """
    kinds = [k for k in type(optimizer).__mro__ if issubclass(k, Optimizer) and k is not Optimizer]
    parameters = [parameter for kind in kinds for parameter in inspect.signature(kind).parameters.values()]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    wrapped = [arguments_of(inner) for inner in vars(optimizer).values() if isinstance(inner, Optimizer)]
    names = frozenset(parameter.name for parameter in parameters)
    return names.union(optimizer.defaults if takes_any else (), *wrapped)


def restore(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restore what `optimizer.state_dict()` returned, every tensor with the dtype that it had.

    torch converts tensors to the dtype of their parameters. With bfloat16 weights, it so rounds those that an optimizer
    keeps in float32, such as the product of NAdam's betas, and the run would not continue exactly.

    This product stays on the host, unless the step is capturable: torch would move it to the device of the weights, and
    then wait for it in each update.
    """
    optimizer.load_state_dict(dict(state))
    restored: dict[Any, Any] = dict(tree_leaves_with_path(optimizer.state_dict()["state"]))
    for path, saved in tree_leaves_with_path(state["state"]):
        target = restored.get(path)
        if isinstance(saved, Tensor) and isinstance(target, Tensor) and target.dtype != saved.dtype:
            target.data = saved.to(target.device)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            kept: dict[str, Any] = optimizer.state.get(parameter, {})
            if isinstance(product := kept.get("mu_product"), Tensor) and not group.get("capturable"):
                kept["mu_product"] = product.cpu()


_States = Sequence[Mapping[str, Tensor]]


def has_fused_call(optimizer: Optimizer) -> bool:
    """Return whether `step_fused` knows the kernel of an optimizer, and all its groups use it."""
    return type(optimizer) in _CALLS and all(group.get("fused") for group in optimizer.param_groups)


def step_fused(optimizer: Optimizer) -> bool:
    """Make a step by the kernels alone. Return False, without a change, if the optimizer's own step is needed.

    It is needed for another optimizer or device, for a group of several dtypes, and as long as a weight has no gradient
    or no state, or the states are in another order than the weights: to look up each would take a call of Python.
    Tested with torch 2.11 and 2.15 to give the bits of `Optimizer.step`, and only on the CPU.
    """
    if type(optimizer) not in _CALLS:
        return False
    calls, entries = list[tuple[partial[None], list[Tensor], _States]](), iter(optimizer.state.items())
    for group in [group for group in optimizer.param_groups if group["params"]]:
        weights: list[Tensor] = group["params"]
        dtype, states = weights[0].dtype, [dict[str, Tensor]()] * len(weights)
        gradients = [w.grad for w in weights if w.grad is not None and w.is_cpu and w.dtype == dtype]
        if optimizer.state:
            states = [state for w, (key, state) in zip(weights, entries, strict=False) if key is w]
        if not group.get("fused") or min(len(gradients), len(states)) < len(weights):
            return False
        try:
            calls.append((_CALLS[type(optimizer)](group, weights, states), gradients, states))
        except KeyError:  # such as a momentum that was 0 before
            return False
    with torch.no_grad():
        for call, gradients, states in calls:
            if "step" in states[0]:
                torch._foreach_add_([state["step"] for state in states], 1)
            call(gradients)
    return True


def _adam(group: Mapping[str, Any], weights: Sequence[Tensor], states: _States) -> partial[None]:
    kernel: Any = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    return partial(
        kernel,
        weights,
        exp_avgs=[state["exp_avg"] for state in states],
        exp_avg_sqs=[state["exp_avg_sq"] for state in states],
        max_exp_avg_sqs=[state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
        state_steps=[state["step"] for state in states],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        **{key: group[key] for key in ("weight_decay", "eps", "amsgrad", "maximize")},
    )


def _sgd(group: Mapping[str, Any], weights: Sequence[Tensor], states: _States) -> partial[None]:
    kernel: Any = torch._fused_sgd_
    return partial(
        kernel,
        weights,
        momentum_buffer_list=[state["momentum_buffer"] for state in states] if group["momentum"] else [],
        is_first_step=False,
        **{k: group[k] for k in ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize")},
    )


def _adagrad(group: Mapping[str, Any], weights: Sequence[Tensor], states: _States) -> partial[None]:
    kernel: Any = torch._fused_adagrad_
    return partial(
        kernel,
        weights,
        state_sums=[state["sum"] for state in states],
        state_steps=[state["step"] for state in states],
        **{key: group[key] for key in ("lr", "lr_decay", "weight_decay", "eps", "maximize")},
    )


_CALLS: Mapping[type[Optimizer], Callable[..., partial[None]]] = {
    Adam: _adam,
    AdamW: _adam,
    SGD: _sgd,
    Adagrad: _adagrad,
}


class OptimizerStep:
    """Calls `optimizer.step()`, or only the function inside torch's wrapper of it, or only its fused kernel.

    torch wraps every `Optimizer.step` to call hooks and to name the step in a profile, and sorts the weights before it
    calls a kernel. On a small model that takes a tenth of an update. Both are skipped only if there are no hooks, no
    profiler and no wrapper of anybody else.
    """

    def __init__(self, optimizer: Optimizer, scheduled: Collection[str] = ()) -> None:
        del scheduled  # only a compiled step needs to know these fields
        self._optimizer = optimizer
        self._class_step: Any = None  # `type(optimizer).step` when it was last unwrapped
        self._unwrapped: Callable[[Optimizer], Any] | None = None

    def __call__(self) -> None:
        step: Any = type(self._optimizer).step
        if step is not self._class_step:
            self._class_step, self._unwrapped = step, unwrap_step(step)
        if self._unwrapped is None or _is_observed(self._optimizer):
            self._optimizer.step()
        elif not step_fused(self._optimizer):
            self._unwrapped(self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


_PROFILE_HOOK_CODE = Optimizer.profile_hook_step(Optimizer.step).__code__
"""The code of torch's wrapper, which identifies it: functools.wraps and proxies copy only its attributes."""


def unwrap_step(step: Any) -> Callable[[Optimizer], Any] | None:
    """Return the function inside torch's wrapper, or None if the outermost wrapper is not torch's."""
    if _is_disabled_by_dynamo(step):
        step = step._torchdynamo_orig_callable
    if type(step) is types.FunctionType and step.__code__ is _PROFILE_HOOK_CODE:
        return step.__wrapped__  # pyrefly: ignore[missing-attribute]  # by functools.wraps
    return None


def _is_disabled_by_dynamo(step: Any) -> bool:
    """Return whether `step` is a wrapper of `torch.compiler.disable`.

    The first use of torch.compile in a process puts one around the step of SparseAdam and LBFGS. It only matters inside
    compiled code, which calls no OptimizerStep. functools.wraps copies its attributes to other wrappers, but only the
    original has its own id in them.
    """
    return (
        type(step) is types.FunctionType
        and getattr(step, "_torchdynamo_disable", False)
        and getattr(step, "_torchdynamo_wrapper_id", None) == id(step)
    )


def _is_observed(optimizer: Any) -> bool:
    """Return whether hooks, a replaced `step` or a profiler need the whole `optimizer.step()`."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or "step" in vars(optimizer)
        or torch.autograd.profiler._is_profiler_enabled  # in any thread
        or torch.autograd._profiler_enabled()
    )


_MODULE_OF_DTENSOR = "torch.distributed.tensor"
"""It is loaded if there is a DTensor. Importing it takes most of a second."""


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Return whether a value is a DTensor."""
    module = sys.modules.get(_MODULE_OF_DTENSOR)
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in one piece. If it is sharded, all ranks must call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's shards of sharded tensors, and other tensors as they are.

    An operation on a DTensor takes the host some 50 us. Code that treats all entries alike uses their shards instead.
    """
    if _MODULE_OF_DTENSOR not in sys.modules:
        return list(tensors)
    with torch.no_grad():
        return [t.to_local() if is_sharded(t) else t for t in tensors]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of all tensors together, shape (). If some are sharded, all ranks must call this together."""
    by_layout: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        layout = (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None
        by_layout.setdefault(layout, []).append(tensor)
    norms = [
        _norm_over_ranks(get_total_norm(local_tensors(group)), *(layout or ()))
        for layout, group in by_layout.items()
    ]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


@torch.no_grad()
def _norm_over_ranks(norm: Tensor, mesh: Any = None, placements: Sequence[Any] = ()) -> Tensor:
    """Return the norm over the ranks among which tensors of a layout are split; they hold shards with this norm."""
    if mesh is None:
        return norm
    from torch.distributed.tensor import DTensor, Partial, Replicate

    summed = [Partial() if placement.is_shard() else Replicate() for placement in placements]
    squares = DTensor.from_local(norm.double().square(), mesh, summed, run_check=False)
    return squares.full_tensor().sqrt().to(norm)


def exceeds_distance(eager: Tensor, other: Tensor, max_distance: float) -> bool:
    """Return whether the 2-norm of the difference is above `max_distance`; False if `eager` is not finite."""
    if not bool(eager.isfinite().all()):
        return False
    return not float(as_real(eager - other).double().norm()) <= max_distance  # True for NaN, too


@dataclass(frozen=True)
class Clipping:
    """Clips the unscaled gradients of an update by each limit that is given, in the order of the arguments.

    Args:
        max_norm: limit of the 2-norm of all gradients together (Pascanu et al., 2013; torch's `clip_grad_norm_`).
        max_value: limit of the absolute value of each entry (torch's `clip_grad_value_`).
        agc: adaptive gradient clipping: limit of the ratio between the gradient norm and the weight norm of each unit
            (Brock et al., "High-performance large-scale image recognition without normalization", 2021; timm's
            `adaptive_clip_grad`).
        head: `id`s of the parameters of the last layer, which `agc` does not clip.
    """

    max_norm: float | None = None
    max_value: float | None = None
    agc: float | None = None
    head: frozenset[int] = frozenset()

    @property
    def key(self) -> str | None:
        """The config key of the first limit; None without one."""
        limits = {"max_grad_norm": self.max_norm, "max_grad_value": self.max_value, "agc": self.agc}
        return next((key for key, limit in limits.items() if limit is not None), None)

    def __call__(self, parameters: Sequence[nn.Parameter], norm: Tensor | None) -> None:
        """Clip in place. `norm`, shape (), is the norm of all gradients; only `max_norm` needs it."""
        gradients = local_gradients(parameters)
        if self.max_norm is not None and norm is not None and gradients:
            torch._foreach_mul_(gradients, norm_ratio(norm, self.max_norm))
        if self.max_value is not None and gradients:
            torch._foreach_clamp_min_(gradients, -self.max_value)
            torch._foreach_clamp_max_(gradients, self.max_value)
        if self.agc is not None:
            from timm.utils.agc import adaptive_clip_grad

            adaptive_clip_grad([p for p in parameters if id(p) not in self.head], clip_factor=self.agc)


def norm_ratio(norm: Tensor, max_norm: float | Tensor) -> Tensor:
    """Return what gradients are multiplied by so that their norm is at most `max_norm`; it is 1 if it already is.

    Args:
        norm: shape (), or of each lane of a stack, (lanes,).
        max_norm: a number, or one for each lane, (lanes,).
    """
    # Without a branch, which would wait for the device. torch divides a number by a tensor like this; dividing one
    # tensor by another rounds in another way.
    return ((norm + 1e-6).reciprocal() * max_norm).to(norm.dtype).clamp(max=1.0)


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the 2-norm of all gradients together, shape (). If some are sharded, all ranks must call this together."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])


def local_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients that there are, or this rank's shards of them."""
    return local_tensors(p.grad for p in parameters if p.grad is not None)
