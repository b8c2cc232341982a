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
from hydrant.collectives import Collective
from hydrant.compilation.arguments import check_backend, check_budgets, check_cache_dir, check_mode
from hydrant.compilation.scopes import Scope, parts_of
from hydrant.compilation.step import EagerUpdate, Step
from hydrant.compilation.update import Hyperparameters, compiled_update
from hydrant.compilation.watch import CompileReport, Incident, Watch
from hydrant.distributed import World
from hydrant.errors import CompileError, ConfigError

log = logging.getLogger("hydrant")

_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
_MIN_CAPABILITY = (7, 0)

Handling = Literal["fail", "fallback"]
Excess = Literal["fail", "warn"]


class Compile:
    """`torch.compile` in place, so that names in checkpoints carry no prefix.

    Args:
        mode, backend, dynamic, options: torch.compile's.
        fullgraph: torch.compile's; `auto` is true on one rank, for a task that calls no collective.
        scope: what is one graph: the `task` (model and loss), the `model`, the model and the loss each
            (`model_and_loss`), or each repeated block of the model, compiled once for all of them (`blocks`).
        optimizer: compile the update too.
        hyperparameters: what a compiled update takes lr and other scheduled fields as: `tensors`, or `numbers` as in
            plain torch, each value of which may be compiled anew.
        evaluation: compile evaluation too, in a graph for any batch size; else it is eager.
        check: compare the first loss and gradients with eager ones.
        same_random: dropout draws what it draws eager; false leaves it to Inductor, which is faster.
        cache_dir: folder of compiled code, for other processes; None is torch's own.
        max_recompiles, max_graph_breaks: how many there may be; None is any number.
        over_budget: whether more than that `fail` the run or `warn`.
        on_failure: whether a task that cannot be compiled is to `fail`, or go on eager with a warning (`fallback`).
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
        over_budget: Excess,
        on_failure: Handling,
    ) -> None:
        check_mode(mode, options, world.device)
        check_backend(backend, options)
        check_cache_dir(cache_dir)
        check_budgets(max_recompiles=max_recompiles, max_graph_breaks=max_graph_breaks)
        # torch refuses mode and options together, and `default` is what it takes for neither.
        own: dict[str, Any] = {"options": dict(options)} if options else {"mode": mode}
        whole = fullgraph is True or (fullgraph == "auto" and world.world_size == 1)
        self._arguments = own | {"backend": backend, "fullgraph": whole, "dynamic": dynamic}
        self._yields_to_collectives = fullgraph == "auto"
        self._scope: Scope = scope
        self._compiles_updates = optimizer
        self._hyperparameters: Hyperparameters = hyperparameters
        self._updates: list[Step] = []
        self._evaluates = evaluation
        self._same_random = same_random
        self._cache_dir = cache_dir
        self._budgets = {"recompile": max_recompiles, "graph break": max_graph_breaks}
        self._fails_over_budget = over_budget == "fail"
        self._told: set[str] = set()
        self._evaluated: set[int] = set()
        self._num_updates = self._num_limits = 0
        self._watch: Watch | None = None
        self.is_on = True
        self.checks = check
        self.reuses_memory = world.device.type == "cuda" and (
            mode in _CUDA_GRAPHS or bool((options or {}).get("triton.cudagraphs"))
        )
        self.falls_back = on_failure == "fallback"
        if world.device.type == "cuda" and torch.cuda.get_device_capability(world.device) < _MIN_CAPABILITY:
            name = torch.cuda.get_device_name(world.device)
            self._refuse(
                "compile", f"needs compute capability 7.0 or more; this is {name}. Use compile=eager"
            )

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Compile on the first call. Starts the account."""
        if not self.is_on:
            return
        import torch._dynamo
        import torch._functorch.config as autograd
        import torch._inductor.config as inductor

        torch._dynamo.reset()  # what another run of this process has compiled is not this one's
        # timm.optim raises this limit to a million on import, and a recompile storm would go unnoticed.
        torch._dynamo.config.recompile_limit = 8
        if torch.__version__ < "2.12":
            # It would not see that a parameter is unfrozen, which then had no gradient.
            torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags = False
        inductor.fallback_random = self._same_random
        if retains_graph:
            autograd.donated_buffer = False  # else the first pass may write over what the next one needs
        if self._cache_dir is not None:
            folder = Path(self._cache_dir).absolute()
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
            os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        self._watch = Watch()
        for compile_part in parts_of(task, self._scope):
            compile_part(**self._arguments)

    def check_fits(self, task: nn.Module, collectives: Sequence[Collective]) -> None:
        parts_of(task, self._scope)
        if collectives and self._yields_to_collectives:
            self._arguments["fullgraph"] = False
        for collective in collectives:
            if collective.changes_gradient:
                told = (
                    f"{collective} changes a tensor that takes part in the gradient, which torch.compile would "
                    "compute otherwise than eager; call it under torch.no_grad(), or use compile=eager"
                )
                self._refuse("compile", told)

    def eagerly(self) -> contextlib.AbstractContextManager[Any]:
        return torch.compiler.set_stance("force_eager")

    def give_up(self) -> None:
        self.is_on = False
        torch.compiler.set_stance("force_eager")

    def train(self, task: nn.Module, batch: Batch) -> Outcome:
        if not self.reuses_memory:
            return task(batch)
        torch.compiler.cudagraph_mark_step_begin()
        return task(batch).clone()

    def evaluate(self, task: nn.Module, batch: Batch) -> Outcome:
        # One sample would be a graph of its own.
        if not (self.is_on and self._evaluates) or len(batch.inputs) == 1:
            with self.eagerly():
                return task(batch)
        import torch._dynamo

        for tensor in batch:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        outcome = task(batch)
        self._follow_evaluation(id(task.model))
        return outcome

    def update_of(self, optimizer: Optimizer, scheduled: Collection[str]) -> Step:
        if not (self.is_on and self._compiles_updates):
            return EagerUpdate(optimizer)
        arguments = {"backend": self._arguments["backend"]}
        self._updates.append(compiled_update(optimizer, scheduled, arguments, self._hyperparameters))
        return self._updates[-1]

    def follow(self, num_updates: int) -> None:
        self._num_updates = num_updates
        if self._watch is None or not self._watch.has_news():
            return
        is_warming_up = all(update.is_warming_up for update in self._updates)
        for incident in self._watch.read(num_updates, plans_updates=is_warming_up):
            log.warning("compiled again after update %d: %s", num_updates, incident)
        report = self._watch.report()
        for incident in report.limits[self._num_limits :]:
            log.warning(
                "eager from update %d on, compiled as often as torch allows: %s", num_updates, incident
            )
        self._num_limits = len(report.limits)
        self._check_budget("recompile", report.recompiles)
        self._check_budget("graph break", report.graph_breaks)

    def _follow_evaluation(self, model: int) -> None:
        """The first graph of each model is planned."""
        if self._watch is not None and self._watch.has_news():
            for incident in self._watch.read(self._num_updates, is_planned=model not in self._evaluated):
                log.warning(
                    "compiled again in the evaluation after update %d: %s", self._num_updates, incident
                )
        self._evaluated.add(model)

    def report(self) -> CompileReport:
        return CompileReport() if self._watch is None else self._watch.report()

    def _check_budget(self, kind: str, incidents: list[Incident]) -> None:
        budget, key = self._budgets[kind], f"compile.max_{kind.replace(' ', '_')}s"
        if budget is None or len(incidents) <= budget or kind in self._told:
            return
        self._told.add(kind)
        told = f"{len(incidents)} {kind}s are more than {key}={budget}; the last one at {incidents[-1]}"
        if self._fails_over_budget:
            raise CompileError(told)
        log.warning("%s", told)

    def _refuse(self, key: str, told: str) -> None:
        if not self.falls_back:
            raise ConfigError(key, told)
        log.warning("%s: %s; going on eager", key, told)
        self.is_on = False
