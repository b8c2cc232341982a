"""The step of an optimizer: the interface, and the eager one."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

from hydrant.optimizers.fused import FusedStep


class OptimizerStep(Protocol):
    """Applies one update of one optimizer."""

    @property
    def is_warming_up(self) -> bool:
        """Whether the next calls may compile as planned."""
        ...

    def __call__(self) -> None: ...

    def disable(self) -> None:
        """Run eager from now on."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class EagerStep:
    """Calls `optimizer.step()`, or only the function inside torch's wrapper of it, or only its fused kernel.

    torch wraps every `Optimizer.step` to call hooks and to name the step in a profile, and sorts the weights before it
    calls a kernel. On a small model that takes a tenth of an update. Both are skipped only if there are no hooks, no
    profiler and no wrapper of anybody else.
    """

    is_warming_up = True  # it never compiles

    def __init__(self, optimizer: Optimizer, scheduled: Collection[str] = ()) -> None:
        del scheduled  # only a compiled step needs to know these fields
        self._optimizer = optimizer
        self._class_step: Any = None  # `type(optimizer).step` when it was last unwrapped
        self._unwrapped: Callable[[Optimizer], Any] | None = None
        self._fused: FusedStep | None = None  # after a step that has made the states

    def __call__(self) -> None:
        step: Any = type(self._optimizer).step
        if step is not self._class_step:
            self._class_step, self._unwrapped = step, unwrap_step(step)
        if self._unwrapped is None or _is_observed(self._optimizer):
            self._optimizer.step()
        elif self._fused is None or not self._fused():
            self._unwrapped(self._optimizer)
            self._fused = FusedStep.of(self._optimizer)

    def disable(self) -> None: ...

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
        return step.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    return None


def _is_disabled_by_dynamo(step: Any) -> bool:
    """Return whether `step` is a wrapper of `torch.compiler.disable`.

    The first use of torch.compile in a process puts one around the step of SparseAdam and LBFGS. It only matters inside
    compiled code, which never calls an EagerStep. functools.wraps copies its attributes to other wrappers, but only the
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
        or torch.autograd.profiler._is_profiler_enabled  # in any thread  # pyright: ignore[reportPrivateUsage]
        or torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateUsage]
    )
