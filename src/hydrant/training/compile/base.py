"""What the loop knows of torch.compile: its interface and the step's, both also eager, and checks of its arguments."""

import contextlib
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

from hydrant.batch import Batch, Outcome
from hydrant.checks import unknown_name
from hydrant.optimizers.kernels import step_fused
from hydrant.training.compile.monitor import CompileReport
from hydrant.training.distributed.ddp import Collective
from hydrant.training.distributed.world import World


class EagerStep:
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

    @property
    def is_warming_up(self) -> bool:
        """Whether the next calls may compile as planned."""
        return True

    def disable(self) -> None:
        """Run eager from now on."""

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


FAILURE_REMEDY = "Use compile=eager, or compile.on_failure=fallback to continue eager"


class Compilation:
    """Compiles a task and reports what was compiled; this one nothing. The builder calls `compilation(world)`."""

    is_on = False  # also after `disable`
    checks = False  # compare the first loss and gradients with those of the eager task
    falls_back = False  # continue eager if the task cannot be compiled
    reuses_memory = False  # the next call overwrites outcomes and gradients, because CUDA graphs are replayed

    @property
    def compiles_steps(self) -> bool:
        """Whether the steps of the optimizers are compiled."""
        return False

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Compile a task in place. `retains_graph`: backward runs several times through one graph."""

    def check_fits(self, task: nn.Module, collectives: Sequence[Collective]) -> None:
        """Check that the task can be compiled as configured.

        Raises:
            ConfigError: the task lacks the parts to compile, or one of its collectives cannot be compiled.
        """

    def force_eager(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which no compiled code runs."""
        return contextlib.nullcontext()

    def disable(self) -> None:
        """Run everything eager from now on."""

    def forward_train(self, task: nn.Module, batch: Batch) -> Outcome:
        """Return the outcome of a micro-batch in training, in memory that the next call does not overwrite."""
        return task(batch)

    def forward_eval(self, task: nn.Module, batch: Batch) -> Outcome:
        """Return the outcome of a batch in evaluation."""
        return task(batch)

    def optimizer_step(self, optimizer: Optimizer, scheduled: Collection[str]) -> EagerStep:
        """Return the step of an optimizer. `scheduled`: the fields of its groups that change during the run."""
        return EagerStep(optimizer, scheduled)

    def check_recompiles(self, num_updates: int) -> None:
        """Log recompilations since the last call.

        Raises:
            CompileError: there are more recompilations or graph breaks than the config allows.
        """

    def report(self) -> CompileReport:
        return CompileReport()


class Eager(Compilation):
    """Compiles nothing."""

    def __init__(self, world: World) -> None:
        del world


_NEEDS = {
    "onnxrt": ("onnxruntime", "onnxruntime"),
    "openxla": ("torch_xla", "torch_xla"),
    "openxla_eval": ("torch_xla", "torch_xla"),
    "tensorrt": ("torch_tensorrt", "torch_tensorrt"),
    "tvm": ("tvm", "apache-tvm"),
}
"""The module that a backend of torch.compile needs besides torch, and the package that installs it."""

_UNUSABLE = re.compile("minifier|_with_mode$")
"""Registered backends that need arguments of their own, which torch.compile does not pass."""


def backend_names() -> list[str]:
    """Return the backends of torch.compile, without those of torch's own tests."""
    import torch._dynamo

    names = torch._dynamo.list_backends(None)
    return [name for name in names if "TESTING_ONLY" not in name and not _UNUSABLE.search(name)]


def missing_package(backend: str) -> str | None:
    """Return how to install what a backend needs besides torch; None if it is there."""
    module, package = _NEEDS.get(backend, ("torch", "torch"))
    return None if find_spec(module) else f"needs {module}: pip install {package}"


def check_backend(backend: str, options: Mapping[str, Any] | None) -> None:
    import torch._dynamo

    if backend not in torch._dynamo.list_backends(None) or _UNUSABLE.search(backend):
        raise unknown_name("compile.backend", "backend", backend, backend_names())
    if options and backend == "inductor":
        from torch._inductor import list_options

        for option in options.keys() - set(list_options()):
            raise unknown_name(f"compile.options.{option}", "option of inductor", option, list_options())
