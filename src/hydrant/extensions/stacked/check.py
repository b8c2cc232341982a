"""Which runs can train as lanes of one stack: checked on their plans, then by training two of them together."""

import dataclasses
import hashlib
import math
import pickle
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import CellType, CodeType, FunctionType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from hydrant.batch import as_real
from hydrant.config.instantiate import instantiate
from hydrant.data import LoaderSource, PositionedSource
from hydrant.errors import ConfigError, log, typed_line
from hydrant.extensions.stacked import ONLY_ONE, Configs, Lanes, StackPlan
from hydrant.extensions.stacked.forward import plain_attributes
from hydrant.extensions.stacked.lanes import CannotStack, flat_numbers, named_tensors
from hydrant.extensions.stacked.optimizer import ELEMENTWISE
from hydrant.extensions.stacked.stack import Stack
from hydrant.files.on_disk import raise_limit
from hydrant.schedules import Plateau
from hydrant.sweeps.preflight import prepare_all, program_of, without_repetitions
from hydrant.training.compilation import Eager
from hydrant.training.distributed.env import num_cores
from hydrant.training.loop import make_update
from hydrant.training.prepare import build, build_optimizers
from hydrant.training.prepare.micro_batch import scratch_trainer
from hydrant.training.trainer import Plan, Trainer

_SCALARS = (NoneType, bool, int, float, complex, str, torch.dtype, torch.device)
_PER_LANE = {"_parameters", "_buffers", "_modules", "training", "state", "param_groups", "defaults"}
"""Attributes of a module or an optimizer that every lane has itself, or that are the same at the start."""


class HiddenContents(pickle.Pickler):
    """The content of what the parts of a task hide, as pickle takes it apart.

    Args:
        task: its modules, parameters and buffers are known, so the content of others does not include them.
    """

    def __init__(self, task: nn.Module) -> None:
        self._digest, self._kept = hashlib.sha256(), list[Hashable]()
        self._known = {
            id(part): n for n, part in enumerate((*task.modules(), *task.parameters(), *task.buffers()))
        }
        super().__init__(self, 5, buffer_callback=lambda buffer: self.write(buffer.raw()))

    def write(self, data: Any) -> None:
        """Take a part of the pickled content."""
        self._digest.update(data)

    def of(self, owner: nn.Module | torch.optim.Optimizer) -> dict[str, Hashable]:
        """Return the hidden attributes of a module or an optimizer, as values that are equal if their content is.

        The plain numbers and strings of a module are not hidden.
        """
        left_out = {*_PER_LANE, *(plain_attributes(owner) if isinstance(owner, nn.Module) else ())}
        hidden = {name: value for name, value in vars(owner).items() if name not in left_out}
        # torch keeps hooks by a number that counts those of the process.
        hooks = {
            name: [*value.values()]
            for name, value in hidden.items()
            if "_hooks" in name and isinstance(value, dict)
        }
        return {name: self._content(value) for name, value in (hidden | hooks).items()}

    def _content(self, value: Any) -> Hashable:
        """Return a hash of a value, and the classes and code within."""
        self._digest, self._kept = hashlib.sha256(), []
        self.dump(value)
        return self._digest.hexdigest(), *self._kept

    def persistent_id(self, obj: Any) -> Hashable:
        """Return what stands for a value in the hash; None: what it consists of."""
        if isinstance(obj, type | CodeType):
            self._kept.append(obj)
            return "kept"
        if isinstance(obj, _SCALARS):
            return f"{type(obj)} {obj!r}"  # NaN is not equal to itself
        return f"known {self._known[id(obj)]}" if id(obj) in self._known else None

    def reducer_override(self, obj: Any) -> Any:
        """Return what an object consists of; nothing if it cannot be known, as that of a lock."""
        if isinstance(obj, Tensor) and obj.layout is torch.strided:
            data = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return tuple, ((obj.dtype, *obj.shape, data),)
        if isinstance(obj, FunctionType):
            return tuple, ((obj.__code__, obj.__defaults__, obj.__kwdefaults__, obj.__closure__, vars(obj)),)
        if isinstance(obj, CellType):
            return tuple, ((obj.cell_contents,) if obj != CellType() else (),)
        try:
            reduced: Any = obj.__reduce_ex__(5)
        except Exception as error:  # of the user's class
            log.debug("the content of a %s is not known: %s", type(obj).__name__, error)
            reduced = "not known"
        return (tuple, ((reduced,),)) if isinstance(reduced, str) else reduced


def check_hidden(tasks: Sequence[nn.Module]) -> None:
    """Check that tasks of the same classes hide no content that differs, as one that is drawn by the seed does.

    Raises:
        CannotStack: an attribute differs, and the lanes of a stack would share that of the first.
    """
    contents = [HiddenContents(task) for task in tasks]
    for modules in zip(*(task.modules() for task in tasks), strict=True):
        hidden = [content.of(module) for content, module in zip(contents, modules, strict=True)]
        for name, first in hidden[0].items():
            if any(other.get(name) != first for other in hidden):
                where = f"{type(modules[0]).__name__}.{name.lstrip('_')}"
                raise CannotStack(f"the content of {where} differs between the runs")


_NUM_TRIED = 3  # updates: the first makes the states of the optimizers, the second traces their steps
_LOSS_TOLERANCE, _ROUNDED_LOSS_TOLERANCE = 1e-3, 3e-2
"""The largest relative difference between the stacked loss and the loss of the run alone; the second one if the forward
pass is rounded to bfloat16. Another random number or a wrong batch changes the loss by more."""
_CHANGE_TOLERANCE = 0.5
"""The largest difference between the changes of all weights, stacked and alone, relative to the change. Some optimizers
amplify rounding: an update by the sign of a gradient near 0 may have the other sign."""


_WITHOUT_STATE = {"hydrant.extensions.hooks.StopIf"}
"""Hooks that look at the evaluations of the run that they are called with, and at nothing else."""


def check_plan(plan: Plan) -> None:
    """Check that a run may be a lane of a stack.

    Raises:
        CannotStack: it may not; the message says why, with the key.
    """
    config, optimizers = plan.config, plan.optimizers
    sources = (plan.data.train, *(split.source for split in plan.splits.values()))
    compiles = config["compile"] if plan.compilation.is_on else {}
    hooks = [hook["_target_"] for hook in (config["hooks"] or {}).values()]
    reasons = {
        "it has several ranks (parallel.num_processes)": config["parallel"]["num_processes"] > 1
        or plan.world.world_size > 1,
        "its loss scale depends on its gradients (precision)": plan.precision.scales_loss,
        "its updates may be skipped (skip_non_finite)": optimizers.skips_non_finite,
        "its optimizers follow single losses (optimizers.*.losses) or take turns": optimizers.leaves_parameters_out,
        "its loss is one of all micro-batches (loss_of_batch, micro_batch_size)": plan.gathers_outputs,
        "its optimizer evaluates the loss itself (optimizer)": optimizers.with_closure is not None,
        "it is profiled (profiler)": plan.profiler.is_on,
        "only a part of it is compiled (compile.scope=task lets it be stacked)": compiles
        and compiles["scope"] != "task",
        "its optimizer or its evaluation is compiled (compile.optimizer, compile.evaluation)": compiles
        and (compiles["optimizer"] or compiles["evaluation"]),
        "it uses CUDA graphs (compile.mode)": compiles
        and compiles["mode"] in ("reduce-overhead", "max-autotune"),
        "its hooks may change anything (hooks; stop_if is allowed)": not _WITHOUT_STATE.issuperset(hooks),
        "it searches its micro-batch size (micro_batch_size=auto)": config["micro_batch_size"] == "auto",
        "one of its durations is in seconds (duration, scheduler.warmup)": plan.clock.unmeasured_sizes
        or plan.clock.update_seconds.measured,
        "its data are a stream (data)": isinstance(plan.data.train, PositionedSource),
        "worker processes read its data (data.num_workers=0 lets it be stacked)": any(
            isinstance(source, LoaderSource) and source.num_workers for source in sources
        ),
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise CannotStack(reason)


def signature(plan: Plan) -> Hashable:
    """Return what is equal for all runs of the same program: everything except seeds, fractions and schedules.

    Fractions may differ only where each lane can have its own: not inside of a partial, for example.
    """
    entries, hidden = plan.optimizers.entries, HiddenContents(plan.task)
    return (
        tuple(_module_signature(module, hidden) for module in plan.task.modules()),
        tuple(
            (name, each.shape, each.dtype, each.requires_grad)
            for name, each in named_tensors(plan.task).items()
        ),
        tuple((name, *_optimizer_signature(entry.optimizer, hidden)) for name, entry in entries.items()),
        tuple(
            (e.clipping.max_norm is None, e.clipping.max_value is None, e.clipping.agc)
            for e in entries.values()
        ),
        tuple(plan.optimizers.schedules.fields),
        type(plan.averaging),
        plan.clock.total_updates,
    )


def try_lanes(plans: Sequence[Plan]) -> int:
    """Train two runs together for some updates, and alone; return the bytes that a lane needs.

    The plans are used up: `plans` has two runs twice, first those to stack, then the same alone.

    Raises:
        CannotStack: they cannot be trained together, or are trained otherwise than alone.
    """
    check_hidden([plan.task for plan in plans])
    with ExitStack() as opened:
        # The task is compiled when the stack begins.
        eager = [dataclasses.replace(plan, compilation=Eager(plan.world)) for plan in plans]
        trainers = [opened.enter_context(scratch_trainer(plan)) for plan in eager]
        half = len(trainers) // 2
        stack, alone = Stack(trainers[:half]), trainers[half:]
        size, before = stack.bytes_per_lane(), [_flat(trainer) for trainer in trainers]
        for _ in range(min(_NUM_TRIED, plans[0].clock.total_updates)):
            stack.update(measure=True)
            for trainer in alone:
                make_update(trainer, measure=True)
        stack.sync()
        losses = [trainer.meter.read()["loss"] for trainer in trainers]
        changes = [_flat(trainer) - start for trainer, start in zip(trainers, before, strict=True)]
        tolerance = _ROUNDED_LOSS_TOLERANCE if plans[0].precision.is_reduced else _LOSS_TOLERANCE
        for n in range(half):
            loss, expected, change = losses[n], losses[half + n], changes[half + n]
            is_near = abs(loss - expected) <= tolerance * max(abs(expected), 1e-3)  # not if one is NaN
            is_alike = is_near and bool((changes[n] - change).norm() <= _CHANGE_TOLERANCE * change.norm())
            if alone[n].carried or not is_alike:
                what = "its weights differ" if is_near else f"its loss is {loss:.6g}, not {expected:.6g}"
                what = "it carries a state" if alone[n].carried else what
                message = f"after {_NUM_TRIED} updates, {what}"
                raise CannotStack(
                    f"{type(stack.lanes[n].model).__name__} does not train as it does alone: {message}"
                )
    return size


@torch.no_grad()
def _flat(trainer: Trainer) -> Tensor:
    """Return all weights and buffers of a run in a line, float64."""
    return torch.cat([as_real(one).reshape(-1).double() for one in named_tensors(trainer.task).values()])


def _module_signature(module: nn.Module, hidden: HiddenContents) -> Hashable:
    """Return the class and the content of a module, but for a fraction of its own only whether it is 0."""
    plain = sorted(plain_attributes(module).items())
    numbers = tuple((k, type(v), not v if type(v) is float else v) for k, v in plain)
    return type(module), numbers, tuple(hidden.of(module).items())


def _optimizer_signature(optimizer: torch.optim.Optimizer, hidden: HiddenContents) -> tuple[Hashable, ...]:
    groups = list[Hashable]()
    for group in optimizer.param_groups:
        # These optimizers run the same code for a weight decay of 0. Another number that is 0 may switch something off.
        free = {"weight_decay"} if type(optimizer) in ELEMENTWISE else set[str]()
        fractions = {n: not value and n not in free for n, value in flat_numbers(group).items()}
        settings = flat_numbers(group, kinds=(int, bool, str, type(None)))
        size = len(group["params"])
        groups.append((size, tuple(sorted(fractions.items())), repr(sorted(settings.items()))))
    return type(optimizer), tuple(groups), tuple(hidden.of(optimizer).items())


_MEMORY_RATIO = 0.5
"""The part of the free memory that the stacks of a machine may take. The rest is for temporary tensors, which are not
counted."""
_FILES_PER_LANE = 6
"""Open files of a lane: the lock of its folder, its log and its rows, and those of a checkpoint that is written."""


def plan_stacks(configs: Configs, lanes: Lanes, num_processes: int | None) -> StackPlan:
    """Prepare and try the jobs that may be the same program, and return how they train.

    Args:
        configs: the checked configs of the jobs.
        lanes: the most lanes of a stack.
        num_processes: how many stacks train at once on this machine, over which `lanes=auto` spreads the jobs; None:
            one for each GPU, or for each core if there are none.
    """
    groups = defaultdict[str, dict[Path, Mapping[str, Any]]](dict)
    for job, config in configs.items():
        groups[program_of(config)][job] = config
    plans = [_plan_group(group, lanes, num_processes, len(groups)) for group in groups.values()]
    places, stacks = [*configs], [stack for plan in plans for stack in plan.stacks]
    alone = {job: why for plan in plans for job, why in plan.alone.items()}
    return StackPlan(sorted(stacks, key=lambda stack: places.index(stack[0])), alone)


def _plan_group(configs: Configs, lanes: Lanes, num_processes: int | None, num_programs: int) -> StackPlan:
    """Return how jobs train whose configs may be the same program.

    Args:
        configs, lanes, num_processes: as in `plan_stacks`.
        num_programs: how many programs share the processes.
    """
    first, alike, alone = _prepare_group(configs)
    stacks = list[list[Path]]()
    for jobs in alike:
        assert first is not None
        size = _bytes_per_lane([configs[job] for job in jobs], first)
        if isinstance(size, str):
            alone |= dict.fromkeys(jobs, size)
        else:
            count = _num_stacks(len(jobs), size, lanes, num_processes, num_programs, first.world.device)
            even = math.ceil(len(jobs) / count)
            stacks += [jobs[start : start + even] for start in range(0, len(jobs), even)]
    return StackPlan([*stacks, *([job] for job in alone)], alone)


def _prepare_group(configs: Configs) -> tuple[Plan | None, list[list[Path]], dict[Path, str | ConfigError]]:
    """Prepare each config once; return the first plan, the jobs of each signature, and why others are alone."""
    first: Plan | None = None
    alike, alone = defaultdict[Hashable, list[Path]](list), dict[Path, str | ConfigError]()
    known = dict[str, Hashable]()  # signatures; repetitions share one
    for job, config in configs.items():
        key = without_repetitions(config)
        try:
            if key not in known:
                plan = prepare_like(config, first) if first else build.prepare(config, is_preview=True)
                check_plan(plan)  # each: also the schedules of a later one may count seconds
                schedules = (s for fields in plan.schedules.values() for s in fields.values())
                if first is not None and any(isinstance(schedule, Plateau) for schedule in schedules):
                    build.prepare(config, is_preview=True)  # checks the metric that the plateau waits for
                first, known[key] = first or plan, signature(plan)
            alike[known[key]].append(job)
        except CannotStack as reason:  # neither can the others
            why = str(reason) if len(configs) > 1 else ONLY_ONE
            errors = prepare_all([*configs.values()])
            return None, [], {job: error or why for job, error in zip(configs, errors, strict=True)}
        except Exception as error:  # such as damaged data: the job itself reports it
            log.debug("a job cannot be prepared", exc_info=error)
            why = f"it cannot be prepared ({type(error).__name__})"
            alone[job] = error.with_traceback(None) if isinstance(error, ConfigError) else why
    return first, list(alike.values()), alone


def _bytes_per_lane(configs: Sequence[Mapping[str, Any]], like: Plan) -> int | str:
    """Try the first and the last job of a program; return what memory a lane needs, or why the jobs train alone.

    In a grid, these two differ in every key that it varies.
    """
    if len(configs) == 1:
        return ONLY_ONE
    tried = configs[0], configs[-1]
    try:
        return try_lanes([prepare_like(config, like) for config in (*tried, *tried)])
    except CannotStack as reason:
        return str(reason)
    except Exception as error:
        log.debug("the trial of two jobs failed", exc_info=error)
        return f"trying it failed ({typed_line(error)})"


def _num_stacks(
    count: int, size: int, lanes: Lanes, num_processes: int | None, num_programs: int, device: torch.device
) -> int:
    """Return the number of stacks: as few as the limits allow, but at least one for each process."""
    at_once = num_processes or torch.cuda.device_count() or num_cores()
    if lanes != "auto":
        return math.ceil(count / lanes)
    fitting = int(_MEMORY_RATIO * available_bytes(device) / max(size, 1))
    if device.type == "cpu":
        fitting //= at_once
    most = max(min(fitting, raise_limit() // _FILES_PER_LANE), 1)
    return max(math.ceil(count / most), min(math.ceil(at_once / num_programs), count // 2))


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device; of the host, what programs can take without swapping."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def prepare_like(config: Mapping[str, Any], like: Plan) -> Plan:
    """Prepare a run of the same program as another one, on the same data: only what may differ is built.

    Args:
        config: differs from that of the other plan in seeds, fractions and schedules only.
        like: the other plan.

    Raises:
        ConfigError: the config cannot run.
    """
    task = build.make_task(config, like.data, like.precision)
    schedules = build_optimizers.make_schedules(config, like.clock, like)
    hooks = build.make_hooks(config["hooks"])
    optimizers = build_optimizers.make_optimizers(config, task, schedules, like.precision, like.compilation)
    optimizers.schedules.check(like.clock.total_updates)
    return dataclasses.replace(
        like,
        config=config,
        spec=dataclasses.replace(like.spec, seed=config["seed"]),
        task=task,
        intervals=build.make_intervals(config, like.clock, hooks),
        schedules=schedules,
        averaging=instantiate(config, "averaging", like.clock),
        hooks=hooks,
        optimizers=optimizers,
    )
