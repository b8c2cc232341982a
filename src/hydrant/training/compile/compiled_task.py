"""torch.compile of a task, in place."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from hydrant.batch import Batch, Outcome
from hydrant.errors import CompileError, ConfigError
from hydrant.training.compile.compiled_step import Hyperparameters, compile_step
from hydrant.training.compile.eager_step import EagerStep, OptimizerStep
from hydrant.training.compile.monitor import CompileMonitor, CompileReport, Incident
from hydrant.training.compile.scopes import Scope, compile_functions
from hydrant.training.compile.validate import check_backend, check_budgets, check_cache_dir, check_mode
from hydrant.training.distributed.collectives import Collective
from hydrant.training.distributed.world import World

log = logging.getLogger("hydrant")

_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
_MIN_CAPABILITY = (7, 0)

OnFailure = Literal["fail", "fallback"]
OverBudget = Literal["fail", "warn"]


class Compile:
    """torch.compile of a task, in place, so that parameter names in checkpoints get no prefix.

    Args:
        world: the rank and its device.
        mode, backend, dynamic, options: arguments of torch.compile.
        fullgraph: argument of torch.compile; `auto` is true on one rank for a task that calls no collective.
        scope: the unit of compilation: the `task` (model and loss), the `model`, the model and the loss separately
            (`model_and_loss`), or the repeated block of the model, compiled once for all repetitions (`blocks`).
        optimizer: compile the optimizer step too.
        hyperparameters: pass lr and other scheduled fields to a compiled step as `tensors`, or as `numbers`, where a
            new value may cause a recompilation.
        evaluation: compile evaluation too, as one graph for any batch size. Otherwise it is eager.
        check: compare the first loss and gradients with those of the eager task.
        same_random: dropout draws the same numbers as in eager. False uses Inductor's generator, which is faster.
        cache_dir: folder for compiled code that other processes reuse; None means torch's default.
        max_recompiles, max_graph_breaks: the most that may occur; None means no limit.
        over_budget: above such a limit, `fail` or `warn`.
        on_failure: if the task cannot be compiled, `fail`, or continue eager with a warning (`fallback`).

    Raises:
        ConfigError: an argument is invalid, or the device is too old and `on_failure` is `fail`.
    """

    def __init__(
        self,
        world: World,
        *,
        mode: str,
        backend: str,
        fullgraph: bool | Literal["auto"],
        dynamic: bool | None,
        options: Mapping[str, Any] | None,
        scope: Scope,
        optimizer: bool,
        hyperparameters: Hyperparameters,
        evaluation: bool,
        check: bool,
        same_random: bool,
        cache_dir: str | None,
        max_recompiles: int | None,
        max_graph_breaks: int | None,
        over_budget: OverBudget,
        on_failure: OnFailure,
    ) -> None:
        check_mode(mode, options, world.device)
        check_backend(backend, options)
        check_cache_dir(cache_dir)
        check_budgets(max_recompiles=max_recompiles, max_graph_breaks=max_graph_breaks)
        # torch accepts mode or options, and takes mode="default" for none.
        arguments: dict[str, Any] = {"options": dict(options)} if options else {"mode": mode}
        is_fullgraph = fullgraph is True or (fullgraph == "auto" and world.world_size == 1)
        self._arguments = arguments | {"backend": backend, "fullgraph": is_fullgraph, "dynamic": dynamic}
        self._allows_breaks_at_collectives = fullgraph == "auto"
        self._scope: Scope = scope
        self._compiles_steps = optimizer
        self._hyperparameters: Hyperparameters = hyperparameters
        self._steps: list[OptimizerStep] = []
        self._compiles_evaluation = evaluation
        self._same_random = same_random
        self._cache_dir = cache_dir
        self._budgets = {"recompile": max_recompiles, "graph break": max_graph_breaks}
        self._fails_over_budget = over_budget == "fail"
        self._exceeded: set[str] = set()  # budgets whose excess was reported
        self._evaluated: set[int] = set()  # ids of models whose evaluation is compiled
        self._num_updates = self._num_logged_limits = 0
        self._monitor: CompileMonitor | None = None
        self.is_on = True
        self.checks = check
        self.reuses_memory = world.device.type == "cuda" and (
            mode in _CUDA_GRAPHS or bool((options or {}).get("triton.cudagraphs"))
        )
        self.falls_back = on_failure == "fallback"
        if world.device.type == "cuda" and torch.cuda.get_device_capability(world.device) < _MIN_CAPABILITY:
            name = torch.cuda.get_device_name(world.device)
            message = f"needs compute capability 7.0 or more; this is {name}. Use compile=eager"
            self._fail_or_fall_back(message)

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Prepare the task to compile at its first call, and start the monitor."""
        if not self.is_on:
            return
        import torch._dynamo
        import torch._functorch.config as autograd
        import torch._inductor.config as inductor

        torch._dynamo.reset()  # forget what earlier runs of this process have compiled
        # timm.optim raises this limit to a million on import, which would hide endless recompilation.
        torch._dynamo.config.recompile_limit = 8
        if torch.__version__ < "2.12":
            # Else Dynamo misses that a parameter was unfrozen, and the parameter gets no gradient.
            torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags = False
        inductor.fallback_random = self._same_random
        if retains_graph:
            autograd.donated_buffer = False  # else the first backward may overwrite tensors of the next
        if self._cache_dir is not None:
            folder = Path(self._cache_dir).absolute()
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
            os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        self._monitor = CompileMonitor()
        for compile_part in compile_functions(task, self._scope):
            compile_part(**self._arguments)

    def check_fits(self, task: nn.Module, collectives: Sequence[Collective]) -> None:
        compile_functions(task, self._scope)
        if collectives and self._allows_breaks_at_collectives:
            self._arguments["fullgraph"] = False
        for collective in collectives:
            if collective.changes_gradient:
                self._fail_or_fall_back(
                    f"{collective} changes a tensor that needs a gradient, and torch.compile computes another gradient "
                    "than eager; call it under torch.no_grad(), or use compile=eager"
                )

    def force_eager(self) -> contextlib.AbstractContextManager[Any]:
        return torch.compiler.set_stance("force_eager")

    def disable(self) -> None:
        self.is_on = False
        torch.compiler.set_stance("force_eager")

    def forward_train(self, task: nn.Module, batch: Batch) -> Outcome:
        if not self.reuses_memory:
            return task(batch)
        torch.compiler.cudagraph_mark_step_begin()
        return task(batch).clone()

    def forward_eval(self, task: nn.Module, batch: Batch) -> Outcome:
        # A batch of one sample would need its own graph, because Dynamo specializes on size 1.
        if not (self.is_on and self._compiles_evaluation) or len(batch.inputs) == 1:
            with self.force_eager():
                return task(batch)
        import torch._dynamo

        for tensor in batch:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        outcome = task(batch)
        self._check_evaluation_recompiles(id(task.model))
        return outcome

    def optimizer_step(self, optimizer: Optimizer, scheduled: Collection[str]) -> OptimizerStep:
        if not (self.is_on and self._compiles_steps):
            return EagerStep(optimizer)
        arguments = {"backend": self._arguments["backend"]}
        self._steps.append(compile_step(optimizer, scheduled, arguments, self._hyperparameters))
        return self._steps[-1]

    def check_recompiles(self, num_updates: int) -> None:
        self._num_updates = num_updates
        if self._monitor is None or not self._monitor.has_news():
            return
        is_warming_up = all(step.is_warming_up for step in self._steps)
        for incident in self._monitor.read(num_updates, steps_are_planned=is_warming_up):
            log.warning("recompiled after update %d: %s", num_updates, incident)
        report = self._monitor.report()
        for incident in report.limits[self._num_logged_limits :]:
            message = "eager from update %d on, because torch allows no more recompilations: %s"
            log.warning(message, num_updates, incident)
        self._num_logged_limits = len(report.limits)
        self._check_budget("recompile", report.recompiles)
        self._check_budget("graph break", report.graph_breaks)

    def _check_evaluation_recompiles(self, model_id: int) -> None:
        """Log recompilations of an evaluation, except for the first graph of each model, which is planned."""
        if self._monitor is not None and self._monitor.has_news():
            for incident in self._monitor.read(self._num_updates, is_planned=model_id not in self._evaluated):
                log.warning("recompiled in the evaluation after update %d: %s", self._num_updates, incident)
        self._evaluated.add(model_id)

    def report(self) -> CompileReport:
        return CompileReport() if self._monitor is None else self._monitor.report()

    def _check_budget(self, kind: str, incidents: list[Incident]) -> None:
        budget, key = self._budgets[kind], f"compile.max_{kind.replace(' ', '_')}s"
        if budget is None or len(incidents) <= budget or kind in self._exceeded:
            return
        self._exceeded.add(kind)
        message = f"{len(incidents)} {kind}s are more than {key}={budget}; the last one at {incidents[-1]}"
        if self._fails_over_budget:
            raise CompileError(message)
        log.warning("%s", message)

    def _fail_or_fall_back(self, message: str) -> None:
        if not self.falls_back:
            raise ConfigError("compile", message)
        log.warning("compile: %s; continuing eager", message)
        self.is_on = False
