"""The forward pass of all lanes: `torch.vmap` over the task as it is, recorded once and compiled as one graph."""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hydrant import seeding
from hydrant.batch import Batch, Outcome, tensors_of, with_tensors
from hydrant.extensions.stacked.functions import StackedFunctions, fold_attention
from hydrant.extensions.stacked.lanes import CannotStack, TensorNumbers, distinct
from hydrant.extensions.stacked.random import Draw, RecordDraws, ReplayDraws, choose_drawing
from hydrant.tasks.base import kept_buffers
from hydrant.training.compilation import Compilation, CompileReport
from hydrant.training.trainer import Trainer

Number = tuple[nn.Module, str]
"""A number of a module by its name, such as the label smoothing of a task. The module is of the first lane."""


class StackedTask(nn.Module):
    """Calls the task of the first lane with the weights, buffers, numbers and batches of all lanes.

    Args:
        task: of the first lane.
        numbers: those that differ between the lanes.
    """

    def __init__(self, task: nn.Module, numbers: Sequence[Number]) -> None:
        super().__init__()
        fold_attention()
        self._task = [task]  # in a list, because it is no part of this module
        self._numbers = numbers
        self._num_targets = 0  # of each lane in the last call, if it is no tensor

    def forward(
        self, tensors: Mapping[str, Tensor], numbers: Sequence[Tensor], drawn: Sequence[Tensor], batch: Batch
    ) -> Outcome:
        """Return what the task returns, with the lanes in front, without predictions.

        Args:
            tensors: weights and buffers by name.
            numbers: the values of the numbers that differ, (lanes,) each.
            drawn: the random numbers, in the order in which the task uses them.
            batch: a micro-batch of each lane.
        """

        def of_lane(
            tensors: dict[str, Tensor], numbers: list[Tensor], drawn: list[Tensor], inputs: list[Tensor]
        ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
            with contextlib.ExitStack() as stack:
                if not torch.compiler.is_compiling():  # the compiler chooses the layout of gradients
                    stack.enter_context(StackedFunctions())
                if numbers:
                    stack.enter_context(self._with_numbers(numbers))
                    stack.enter_context(TensorNumbers())
                if drawn:
                    stack.enter_context(ReplayDraws(drawn))
                outcome: Outcome = functional_call(self._task[0], tensors, (with_tensors(batch, inputs),))
            num_targets = outcome.num_targets
            counts: dict[str, Tensor] = {}  # a display, because Dynamo knows no dict[str, Tensor]()
            if isinstance(num_targets, Tensor):
                counts = {"num": num_targets}
            else:
                self._num_targets = num_targets
            return outcome.losses, outcome.measurements, counts

        mapped = torch.vmap(of_lane, randomness="error")
        losses, measurements, counts = mapped(
            dict(tensors), list(numbers), list(drawn), list(tensors_of(batch))
        )
        return Outcome(losses, measurements, (), counts.get("num", self._num_targets))

    @contextlib.contextmanager
    def _with_numbers(self, values: Sequence[Tensor]) -> Generator[None]:
        before = [getattr(module, name) for module, name in self._numbers]
        for (module, name), value in zip(self._numbers, values, strict=True):
            setattr(module, name, value)
        try:
            yield
        finally:
            for (module, name), value in zip(self._numbers, before, strict=True):
                setattr(module, name, value)


def differing_numbers(tasks: Sequence[nn.Module]) -> dict[Number, list[float]]:
    """Return the value in each lane of the numbers of modules that differ between the lanes.

    Raises:
        CannotStack: the modules differ in more, or a number is 0 in some lanes only.
    """
    numbers = dict[Number, list[float]]()
    for modules in zip(*(task.modules() for task in tasks), strict=True):
        by_lane = [plain_attributes(module) for module in modules]
        for name in by_lane[0]:
            values = [attributes.get(name) for attributes in by_lane]
            if all(value == values[0] for value in values):
                continue
            if 0 in values or any(type(value) is not float for value in values):
                where = f"{type(modules[0]).__name__}.{name.lstrip('_')}"
                raise CannotStack(f"{where} differs between the runs, and is 0 in one or no fraction")
            numbers[modules[0], name] = values  # type: ignore[assignment]
    return numbers


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module itself that are numbers, strings or None."""
    return {k: v for k, v in vars(module).items() if v is None or isinstance(v, int | float | str)}


class StackedDraws:
    """Draws the random numbers of all lanes. Each lane draws what its run alone would.

    Args:
        lanes: runs of the same program.

    Raises:
        CannotStack: they draw numbers in a way that cannot be repeated for each lane, or have sparse gradients.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        device = lanes[0].plan.world.device
        first, self.unused = record_draws(lanes[0])
        """The names of the weights that no loss depends on."""
        configs = [lane.plan.config for lane in lanes] if first else []
        programs = [repr((config["model"], config["task"])) for config in configs]
        by_program = {program: first for program in programs[:1]}
        for lane, program in zip(lanes, programs, strict=False):
            if program not in by_program:
                by_program[program] = record_draws(lane)[0]
        if any(_kinds(draws) != _kinds(first) for draws in by_program.values()):
            raise CannotStack("the runs draw random numbers of different shapes or types")
        # Lanes with the same seed and program share one source. `places` has the source of each lane.
        keys = [(lane.plan.spec.seed, program) for lane, program in zip(lanes, programs, strict=False)]
        first_lanes, places = distinct(keys)
        sources = [(keys[n][0], by_program[keys[n][1]]) for n in first_lanes]
        self._places = torch.tensor(places, device=device) if len(first_lanes) < len(keys) else None
        self._drawing = choose_drawing(sources, device)

    def draw(self, num_updates: int, micro_step: int) -> list[Tensor]:
        """Return the random numbers of a micro-batch, (lanes, ...) each, in the order in which the task uses them."""
        drawn = self._drawing.draw(num_updates, micro_step)
        return drawn if self._places is None else [rows[self._places.to(rows.device)] for rows in drawn]


def _kinds(draws: Sequence[Draw]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(draw.like.shape, draw.like.dtype, draw.device) for draw in draws]


def record_draws(lane: Trainer) -> tuple[list[Draw], set[str]]:
    """Call the task of a run on its next micro-batch; return how it draws random numbers, and the unused weights.

    Weights are named as in the task. They are unused if the loss does not depend on them.

    Raises:
        CannotStack: it draws numbers in a way that cannot be repeated for each lane, or has sparse gradients.
    """
    plan = lane.plan
    host, batch = seeding.host_state(), lane.first_batch()
    _seed(lane)
    with kept_buffers(lane.task):
        with RecordDraws() as recorded, plan.precision.autocast(), plan.compilation.force_eager():
            outcome = lane.task(plan.precision.cast(batch))
        after = _device_state(lane)
        unused = _unused_weights(lane, outcome)
    _seed(lane)
    for draw in recorded.draws:
        draw.fill(draw.empty())
    if not torch.equal(after, _device_state(lane)) or not seeding.is_host_state(host):
        name = type(lane.model).__name__
        raise CannotStack(f"{name} draws random numbers that cannot be drawn for each run alone")
    return recorded.draws, unused


def _unused_weights(lane: Trainer, outcome: Outcome) -> set[str]:
    named = {name: p for name, p in lane.task.named_parameters() if p.requires_grad}
    # None for a weight that is not used, whatever torch declares.
    gradients: Any = torch.autograd.grad(outcome.total_loss(), list(named.values()), allow_unused=True)
    if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
        raise CannotStack(f"{type(lane.model).__name__} has sparse gradients")
    return {name for name, gradient in zip(named, gradients, strict=True) if gradient is None}


def _seed(lane: Trainer) -> None:
    plan = lane.plan
    seeding.seed_micro_step(plan.spec.seed, lane.state.num_updates, 0, plan.world.device)


def _device_state(lane: Trainer) -> Tensor:
    device = lane.plan.world.device
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


class LaneCompilation(Compilation):
    """The compilation of a run in a stack: its own task stays eager, and the stack compiles all lanes as one.

    Args:
        of_stack: the configured compilation.
    """

    def __init__(self, of_stack: Compilation) -> None:
        self.of_stack = of_stack

    def force_eager(self) -> contextlib.AbstractContextManager[Any]:
        return self.of_stack.force_eager()

    def report(self) -> CompileReport:
        """Return what was compiled for all lanes."""
        return self.of_stack.report()
