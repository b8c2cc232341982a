"""torch.compile of a task, in place, as the graphs that each value of compile.scope names."""

import contextlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException  # noqa: PLC2701  # what Dynamo raises
from torch.optim import Optimizer

from hydrant.batch import Batch, Outcome, map_tensors, tensors_of
from hydrant.errors import CompileError, ConfigError, log, unknown_name
from hydrant.extensions.compile import checks
from hydrant.extensions.compile.compiled_step import CompiledStep, Hyperparameters, compile_step
from hydrant.files.plain_values import NotNegativeInt
from hydrant.models import repeated_blocks
from hydrant.optimizers.kernels import OptimizerStep
from hydrant.tasks import Task
from hydrant.training.compilation import Compilation, CompileReport, Gradients, Incident
from hydrant.training.costs import is_out_of_memory, reset_peak_memory
from hydrant.training.distributed.ddp import Collective
from hydrant.training.distributed.world import World
from hydrant.training.trainer import Plan, Trainer

Scope = Literal["task", "model", "model_and_loss", "blocks"]

Function = Callable[..., Any]


def parts_to_compile(task: nn.Module, scope: Scope) -> list[tuple[nn.Module, str]]:
    """Return the modules to compile, each with the name of its method.

    Only the forward of a module is compiled: its hooks, such as those that gather sharded weights, stay outside the
    graph. `module.compile` would include them, and up to torch 2.13 it compiles nothing of nn.Sequential.

    Raises:
        ConfigError: the task has no such part.
    """
    if scope == "task":
        return [(task, "outputs" if isinstance(task, Task) and task.gathers_outputs else "forward")]
    model, obstacle = cast("nn.Module", task.model), ""
    parts = list(model.children()) if isinstance(model, nn.ModuleDict) else [model]
    if scope == "blocks":
        parts = [block for part in parts for block in repeated_blocks(part)]
        obstacle = "" if parts else "this model has no repeated blocks"
    if scope == "model_and_loss" and type(cast("Task", task)).assess is Task.assess:
        obstacle = f"{type(task).__name__} computes its loss without a method `assess`"
    if obstacle:
        raise ConfigError("compile.scope", obstacle, remedy="use compile.scope=task")
    loss = [(task, "assess")] if scope == "model_and_loss" else []
    return [*((part, "forward") for part in parts), *loss]


def compile_in_place(owner: nn.Module, method: str, compiled: Callable[[Function], Function]) -> None:
    """Set the compiled method on the instance, so that other instances of the class stay as they are."""
    function: Function = getattr(owner, method)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    setattr(owner, method, compiled(call if method == "forward" else function))


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
    names = torch._dynamo.list_backends(None)
    return [name for name in names if "TESTING_ONLY" not in name and not _UNUSABLE.search(name)]


def missing_package(backend: str) -> str | None:
    """Return how to install what a backend needs besides torch; None if it is there."""
    module, package = _NEEDS.get(backend, ("torch", "torch"))
    return None if find_spec(module) else f"needs {module}: pip install {package}"


_FAILURE_REMEDY = "Use compile=eager, or compile.on_failure=fallback to continue eager"
_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
_MIN_CAPABILITY = (7, 0)

OnFailure = Literal["fail", "fallback"]
OverBudget = Literal["fail", "warn"]


class Compile(Compilation):
    """torch.compile of a task, in place, so that parameter names in checkpoints get no prefix.

    Args:
        world: the rank and its device.
        mode, backend, dynamic, options: arguments of torch.compile.
        fullgraph: refuse graph breaks. `auto`: on one rank, if the task calls no collective; True: always, and refuse
            calls beyond torch's recompile limit; False: never. With `auto`, calls beyond this limit run eager.
        scope: `task`: model and loss in one graph; `model`; `model_and_loss`: a graph each; `blocks`: the repeated
            block of the model once, for all repetitions.
        optimizer: True: compile the optimizer step too, if it compiles once.
        hyperparameters: the type of lr and other scheduled fields in the compiled step: `tensors`, or `numbers` as in
            plain torch, where a new value may recompile it.
        evaluation: True: compile evaluation too, as one more graph for any batch size.
        check: compare the first loss and gradients with those of the eager task.
        same_random: dropout draws the same numbers as in eager; False: Inductor's own generator, which is faster.
        cache_dir: folder for compiled code that processes share; None: torch's default.
        max_recompiles: the most recompilations; None: no limit.
        max_graph_breaks: the most graph breaks; None: no limit.
        over_budget: above one of these limits: `fail` or `warn`.
        on_failure: if the task cannot be compiled, or exceeds a limit: `fail`, or `fallback` (continue eager with a
            warning).

    Raises:
        ConfigError: an argument is invalid; or the device is too old, or the backend needs a package that is not
            installed, and `on_failure` is `fail`.
    """

    def __init__(
        self,
        world: World,
        *,
        mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
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
        max_recompiles: NotNegativeInt | None,
        max_graph_breaks: NotNegativeInt | None,
        over_budget: OverBudget,
        on_failure: OnFailure,
    ) -> None:
        if mode == "reduce-overhead" and world.device.type != "cuda":
            message = "reduce_overhead records CUDA graphs and needs CUDA"
            raise ConfigError("compile", message, remedy="use compile=default")
        if backend not in torch._dynamo.list_backends(None) or _UNUSABLE.search(backend):
            raise unknown_name("compile.backend", "backend", backend, backend_names())
        # torch refuses both, and takes mode="default" for one.
        arguments: dict[str, Any] = {"options": dict(options)} if options else {}
        arguments |= {} if options and mode == "default" else {"mode": mode}
        is_fullgraph = fullgraph is True or (fullgraph == "auto" and world.world_size == 1)
        arguments |= {"backend": backend, "fullgraph": is_fullgraph, "dynamic": dynamic}
        self._arguments = arguments
        self._fullgraph_is_auto = fullgraph == "auto"
        self._scope: Scope = scope
        self._compiles_steps = optimizer
        self._hyperparameters: Hyperparameters = hyperparameters
        self._steps: list[CompiledStep] = []
        self._compiles_evaluation = evaluation
        self._same_random = same_random
        self._cache_dir = cache_dir
        self._budgets = {"recompile": max_recompiles, "graph break": max_graph_breaks}
        self._fails_over_budget = over_budget == "fail"
        self._exceeded: set[str] = set()  # budgets whose excess was reported
        self._evaluated: set[int] = set()  # ids of models whose evaluation is compiled
        self._num_updates = self._num_logged_limits = 0
        self._compares = check
        self._has_run = False  # a micro-batch was compiled
        self._is_task_eager = False  # from some update on
        self._monitor: checks.CompileMonitor | None = None
        self.is_on = True
        self.reuses_memory = world.device.type == "cuda" and (
            mode in _CUDA_GRAPHS or bool((options or {}).get("triton.cudagraphs"))
        )
        self._falls_back = on_failure == "fallback"
        obstacle = missing_package(backend)
        if obstacle is not None:
            self._fail_or_fall_back(f"{backend} {obstacle}", "compile.backend")
        if world.device.type == "cuda" and torch.cuda.get_device_capability(world.device) < _MIN_CAPABILITY:
            name = torch.cuda.get_device_name(world.device)
            message = f"needs compute capability 7.0 or more; this is {name}. Use compile=eager"
            self._fail_or_fall_back(message)

    @property
    def compiles_steps(self) -> bool:
        return self.is_on and self._compiles_steps

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Prepare the task to compile at its first call, and start the monitor."""
        if not self.is_on:
            return
        import torch._functorch.config as autograd  # noqa: PLC2701  # settings without a public name
        import torch._inductor.config as inductor  # noqa: PLC2701  # the same
        import torch.fx.experimental._config as shapes  # noqa: PLC2701  # the same

        torch._dynamo.reset()  # forget what earlier runs of this process have compiled
        # timm.optim raises this limit to a million on import, which would hide endless recompilation.
        torch._dynamo.config.recompile_limit = 8
        torch._dynamo.config.suppress_errors = False
        if torch.__version__ < "2.12":
            # Else Dynamo misses that a parameter was unfrozen, and the parameter gets no gradient.
            torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags = False
        inductor.fallback_random = self._same_random
        # Else sides that are equal in the first batch, such as 8 sequences of length 8, must stay equal.
        shapes.use_duck_shape = self._arguments["dynamic"] is not True
        if retains_graph:
            autograd.donated_buffer = False  # else the first backward may overwrite tensors of the next
        if self._cache_dir is not None:
            folder = Path(self._cache_dir).absolute()
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
            os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        self._monitor = checks.CompileMonitor()
        for owner, method in parts_to_compile(task, self._scope):
            compile_in_place(owner, method, self._compiled)

    def check_fits(self, task: nn.Module, collectives: Sequence[Collective], derivative: str) -> None:
        parts_to_compile(task, self._scope)
        is_traced = getattr(torch._dynamo.config, "trace_autograd_ops", False)
        if derivative and not is_traced and self._scope != "blocks":
            remedy = "take it by torch.func.grad, or use compile=eager"
            self._fail_or_fall_back(f"the derivative at {derivative} has no derivative itself; {remedy}")
        if collectives and self._fullgraph_is_auto:
            self._arguments["fullgraph"] = False
        for collective in collectives:
            if collective.changes_gradient:
                self._fail_or_fall_back(
                    f"{collective} changes a tensor that needs a gradient, and torch.compile computes another gradient "
                    "than eager; call it under torch.no_grad(), or use compile=eager"
                )

    def force_eager(self) -> contextlib.AbstractContextManager[Any]:
        return torch.compiler.set_stance("force_eager")

    def check_sharded(self, blocks: Sequence[nn.Module]) -> None:
        if self.reuses_memory:
            message = "CUDA graphs need weights that stay in place"
            raise ConfigError("compile.mode", message, remedy="use compile=default")
        if blocks and self.is_on and self._scope != "blocks":
            message = "blocks that are sharded one by one are compiled one by one"
            raise ConfigError("compile.scope", message, remedy="use compile.scope=blocks")

    def begin(self, trainer: Trainer) -> None:
        if not self.is_on:
            return
        try:
            self.check_first(
                partial(checks.first_gradients, trainer), trainer.plan, trainer.state.num_updates
            )
            reset_peak_memory(trainer.plan.world.device)  # the check is no part of the run
        except CompileError as error:
            message = str(error).rstrip(".")
            if not self._falls_back:
                raise type(error)(message, remedy=_FAILURE_REMEDY) from error
            if trainer.plan.world.is_rank_zero:
                log.warning("%s. Continuing eager", message)
            self.is_on = False
            torch.compiler.set_stance("force_eager")
            for step in self._steps:
                step.disable()

    def check_first(self, first_gradients: Callable[[], Gradients], plan: Plan, num_updates: int) -> None:
        checks.check_compiled(self, first_gradients, plan, num_updates, compares=self._compares)

    def forward_train(self, task: nn.Module, batch: Batch) -> Outcome:
        return self._call(task, batch)

    def forward_eval(self, task: nn.Module, batch: Batch) -> Outcome:
        # A batch of one sample would need its own graph, because Dynamo specializes on size 1.
        is_eager = self._is_task_eager or not (self.is_on and self._compiles_evaluation)
        if is_eager or batch.num_samples == 1:
            with self.force_eager():
                return task(batch)
        for tensor in tensors_of(batch):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        outcome = self._call(task, batch)
        # The first graph of each model is planned.
        self._read("in the evaluation after update", is_planned=id(task.model) not in self._evaluated)
        self._evaluated.add(id(task.model))
        return outcome

    def optimizer_step(self, optimizer: Optimizer, scheduled: Collection[str]) -> OptimizerStep:
        if not self.compiles_steps:
            return OptimizerStep(optimizer)
        arguments = {k: v for k, v in self._arguments.items() if k in ("backend", "mode", "options")}
        step = compile_step(optimizer, scheduled, arguments, self._hyperparameters)
        if isinstance(step, CompiledStep):
            self._steps.append(step)
        return step

    def check_recompiles(self, num_updates: int, *, is_planned: bool = False) -> None:
        self._num_updates = num_updates
        steps_are_planned = all(step.is_warming_up for step in self._steps)
        self._read("after update", is_planned=is_planned, steps_are_planned=steps_are_planned)
        self._has_run = True
        if self._falls_back and not self._arguments["fullgraph"]:
            # Dynamo runs what it cannot compile eager, because the caller's part before it must not run twice.
            torch._dynamo.config.suppress_errors = True

    def report(self) -> CompileReport:
        return CompileReport() if self._monitor is None else self._monitor.report()

    def _call(self, task: nn.Module, batch: Batch) -> Outcome:
        """Return the outcome of the compiled task, in memory that the next call does not overwrite."""
        if not self.reuses_memory:
            return task(batch)
        torch.compiler.cudagraph_mark_step_begin()
        return map_tensors(Tensor.clone, task(batch))

    def _read(self, when: str, **planned: bool) -> None:
        """Log what was compiled since the last call, and check the limits."""
        if self._monitor is not None and self._monitor.has_news():
            self._record(self._monitor, when, **planned)
            self._check_limits(self._monitor.report())

    def _record(self, monitor: checks.CompileMonitor, when: str, **planned: bool) -> None:
        for incident in monitor.read(self._num_updates, **planned):
            log.warning("recompiled %s %d: %s", when, self._num_updates, incident)

    def _check_limits(self, report: CompileReport) -> None:
        """Log where torch's limit was reached, and check the limits of the config."""
        for incident in report.limits[self._num_logged_limits :]:
            message = "eager from update %d on, because torch allows no more recompilations: %s"
            log.warning(message, self._num_updates, incident)
        self._num_logged_limits = len(report.limits)
        self._check_budget("recompile", report.recompiles)
        self._check_budget("graph break", report.graph_breaks)

    def _check_budget(self, kind: str, incidents: list[Incident]) -> None:
        budget, key = self._budgets[kind], f"compile.max_{kind.replace(' ', '_')}s"
        if budget is None or len(incidents) <= budget or kind in self._exceeded:
            return
        self._exceeded.add(kind)
        message = f"{len(incidents)} {kind}s are more than {key}={budget}; the last one at {incidents[-1]}"
        if self._fails_over_budget:
            self._fail_or_continue_eager(message)
        else:
            log.warning("%s", message)

    def _compiled(self, function: Function) -> Function:
        """Return the compiled function. Calls that cannot be compiled are eager, if the config allows it."""
        breakable: dict[str, Any] = {**self._arguments, "fullgraph": False}
        compiled = torch.compile(function, **self._arguments)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal compiled
            if self._is_task_eager:
                return function(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except FailOnRecompileLimitHit as error:
                if self._fullgraph_is_auto:
                    # Has the same graphs, because Dynamo keeps them with the code of the function. Calls that fit
                    # none of them are eager.
                    compiled = torch.compile(function, **breakable)
                else:
                    assert self._monitor is not None
                    self._record(self._monitor, "after update")
                    limit = f"torch allows no more recompilations: {self._monitor.report().limits[-1]}"
                    remedy = "let calls that fit no graph run eager: compile.fullgraph=auto"
                    self._fail_or_continue_eager(f"{limit}; {remedy}", error)
            except TorchDynamoException as error:
                # Without fullgraph, a part of the function has already run, and must not run twice.
                if is_out_of_memory(error) or not self._arguments["fullgraph"]:
                    raise
                self._fail_or_continue_eager(checks.failure_message(error), error)
            return call(*args, **kwargs)  # nothing of the function has run yet

        return call

    def _fail_or_continue_eager(self, message: str, cause: Exception | None = None) -> None:
        """Run the task eager from now on if the config says so. The steps stay compiled, as on the other ranks.

        Raises:
            CompileError: `compile.on_failure` is not `fallback`, or no micro-batch has run yet: then all ranks must
                continue in one way (`begin`).
        """
        if not (self._has_run and self._falls_back):
            raise CompileError(message, remedy=_FAILURE_REMEDY if self._has_run else "") from cause
        log.warning("%s. Continuing eager after update %d", message, self._num_updates)
        self._is_task_eager = True

    def _fail_or_fall_back(self, message: str, key: str = "compile") -> None:
        if not self._falls_back:
            raise ConfigError(key, message)
        log.warning("%s: %s; continuing eager", key, message)
        self.is_on = False
