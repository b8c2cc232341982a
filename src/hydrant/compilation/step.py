"""What applies an update, and the eager one."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)


class Step(Protocol):
    """Applies the update of one optimizer."""

    @property
    def is_warming_up(self) -> bool:
        """Whether it is planned that it compiles."""
        ...

    def __call__(self, num_updates: int) -> None:
        """The update after `num_updates` completed ones."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class EagerUpdate:
    """The optimizer's own step.

    Torch wraps it to call hooks and to name it in a profile, which on a small model takes a tenth of an update. Where
    there are no hooks, no profile, and nothing that somebody put around it, it is called without.
    """

    is_warming_up = True  # there is nothing to compile

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        step: Any = type(optimizer).step
        is_plain = type(step) is types.FunctionType  # nothing that passes for one, as wrapt's
        self._hooking: Any = step if is_plain and step.__code__ is _HOOKING else None

    def __call__(self, num_updates: int) -> None:
        del num_updates
        hooking = self._hooking
        if hooking is None or type(self._optimizer).step is not hooking or _is_followed(self._optimizer):
            self._optimizer.step()
        else:
            hooking.__wrapped__(self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


_HOOKING = Optimizer.profile_hook_step(Optimizer.step).__code__
"""What torch wraps a `step` in, and nobody else."""


def _is_followed(optimizer: Any) -> bool:
    """Whether somebody wants to know of an optimizer's step."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or "step" in vars(optimizer)
        or torch.autograd.profiler._is_profiler_enabled  # of all threads  # pyright: ignore[reportPrivateUsage]
        or torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateUsage]
    )
