"""The forward pass of all lanes: `torch.vmap` over the task as it is, recorded once and compiled as one graph.

Some functions are faster here than the batching rules of torch: linear layers, losses and attention.
"""

import contextlib
import functools
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import DispatchKey, DispatchKeySet, _functorch  # noqa: PLC2701  # it has no public interface
from torch._functorch import pyfunctorch  # noqa: PLC2701
from torch.func import functional_call

from hydrant import seeding
from hydrant.batch import Batch, Outcome, tensors_of, with_tensors
from hydrant.extensions.stacked.lanes import CannotStack, FunctionMode, TensorNumbers, distinct
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
        losses, measurements, counts = mapped(dict(tensors), [*numbers], [*drawn], [*tensors_of(batch)])
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
            values: list[Any] = [attributes.get(name) for attributes in by_lane]
            if all(value == values[0] for value in values):
                continue
            if 0 in values or any(type(value) is not float for value in values):
                where = f"{type(modules[0]).__name__}.{name.lstrip('_')}"
                raise CannotStack(f"{where} differs between the runs, and is 0 in one or no fraction")
            numbers[modules[0], name] = values
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


class StackedFunctions(FunctionMode):
    """Inside this context, some functions give the results of `torch.vmap` faster.

    `F.linear` gives gradients of the weights that lie in memory as the weights do. Those of the batching rule of torch
    are transposed, so autograd copies them once more. `F.cross_entropy` takes the samples of all lanes as one batch:
    torch has no batching rule for it, and maps several smaller operations instead. Under autocast it computes in
    float32, as it does without `torch.vmap`.

    Enter it in a function that `torch.vmap` maps. It leaves linear layers alone that run under autocast, cross
    entropies with class weights or class probabilities, and what another transform of `torch.func` maps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._level = pyfunctorch.retrieve_current_functorch_interpreter().level()

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        used = {key: value for key, value in named.items() if value is not None}
        if func is F.linear and args and not torch.is_autocast_enabled(args[0].device.type):
            ours: Any = _linear
        elif func is F.cross_entropy and _has_indices_alone(args, used):
            ours = _cross_entropy
        else:
            return func(*args, **named)
        transform: Any = pyfunctorch.retrieve_current_functorch_interpreter()
        if transform.level() != self._level:
            return func(*args, **named)
        return ours(transform, *args, **used)


def _linear(vmap: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply the layer of every lane. `torch.vmap` calls the batching rules of C++ in the same way."""
    level, num_lanes = vmap.level(), vmap.batch_size()
    stacked = [None if t is None else with_lanes(t, level, num_lanes) for t in (input, weight, bias)]
    with vmap.lower():
        outputs: Any = _Linear.apply(*stacked)
    return _functorch._add_batch_dim(outputs, 0, level)


def _has_indices_alone(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a cross entropy is one of a batch with class indices, without class weights."""
    is_known = len(args) == 2 and named.keys() <= {"ignore_index", "reduction", "label_smoothing"}
    is_known &= named.get("reduction", "mean") in ("mean", "sum", "none")
    return is_known and args[0].ndim > 1 and not args[1].is_floating_point()


def _cross_entropy(
    vmap: Any,
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross entropy of every lane. The samples of all lanes are one batch."""
    level, num_lanes = vmap.level(), vmap.batch_size()
    all_logits, all_targets = (with_lanes(t, level, num_lanes) for t in (logits, targets))
    with vmap.lower():
        terms = F.cross_entropy(
            all_logits.flatten(0, 1),
            all_targets.flatten(0, 1),
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=label_smoothing,
        ).view(all_targets.shape)
        if reduction != "none":
            terms = terms.flatten(1).sum(1)
        if reduction == "mean":
            terms = terms / (all_targets != ignore_index).flatten(1).sum(1)
    return _functorch._add_batch_dim(terms, 0, level)


def with_lanes(tensor: Tensor, level: int, num_lanes: int) -> Tensor:
    """Return a tensor of a lane with the lanes in front."""
    stacked, dim = _functorch._unwrap_batched(tensor, level)
    if dim == 0:
        return stacked
    return stacked.expand(num_lanes, *stacked.shape) if dim is None else stacked.movedim(dim, 0)


class _Linear(torch.autograd.Function):
    """Inputs (lanes, ..., in), weights (lanes, out, in) and biases (lanes, out) or None give (lanes, ..., out)."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyrefly: ignore[bad-override]  # torch passes these
        ctx.save_for_backward(input, weight)
        rows = _rows(input)
        products = rows.bmm(weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return products if input.ndim == 3 else products.view(*input.shape[:-1], weight.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        rows = _rows(gradients[0])
        return (
            rows.bmm(weight).view(input.shape) if needs_input else None,
            rows.mT.bmm(_rows(input)) if needs_weight else None,
            rows.sum(1) if needs_bias else None,
        )


def _rows(values: Tensor) -> Tensor:
    """Return values (lanes, ..., N) as (lanes, M, N)."""
    return values if values.ndim == 3 else values.reshape(len(values), -1, values.shape[-1])


_attend = torch.ops.aten.scaled_dot_product_attention.default
_BELOW_VMAP = DispatchKeySet(DispatchKey.FuncTorchDynamicLayerBackMode)


@functools.cache
def fold_attention() -> torch.library.Library:
    """Let `torch.vmap` map `scaled_dot_product_attention` by one call for all lanes, from now on in this process.

    This holds wherever it is called: by a module of torch or timm, and in compiled code. torch itself maps the kernel
    that it chooses for a lane (November 2026). So autocast does not convert the inputs, the kernel of the CPU is called
    lane by lane, and torch 2.11 finds no weights to train: on CUDA, the memory-efficient kernel keeps no sums for the
    backward pass, which fails ("LSE is not correctly aligned").

    Returns:
        what holds the rule. torch forgets it with this object.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch 2.11 gives it also with `allow_override`.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        library.impl("scaled_dot_product_attention", _map, "FuncTorchVmapMode", allow_override=True)
    return library


def _map(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the attention of every lane: of (B, H, L, D) in each by one call for (lanes * B, H, L, D).

    With dropout, whose numbers would be drawn for all lanes at once, and with inputs of other batches, for which torch
    has no fused kernel, it is mapped as by torch.
    """
    inputs, options = (query, key, value), {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    batch = query.shape[:-3]
    if dropout_p or any(x.ndim < 3 or x.shape[:-3] != batch for x in inputs):
        return _attend.decompose(*inputs, attn_mask, dropout_p, **options)
    vmap: Any = pyfunctorch.retrieve_current_functorch_interpreter()
    level, num_lanes = vmap.level(), vmap.batch_size()
    folded = [with_lanes(x, level, num_lanes).flatten(0, -4) for x in inputs]
    mask = None if attn_mask is None else _folded_mask(attn_mask, level, num_lanes, batch)
    mixed = _attend.redispatch(_BELOW_VMAP, *folded, mask, **options)
    return _functorch._add_batch_dim(mixed.unflatten(0, (num_lanes, *batch)), 0, level)


def _folded_mask(mask: Tensor, level: int, num_lanes: int, batch: torch.Size) -> Tensor:
    """Return a mask or bias of (lanes * B, H, L, L), or one that all samples of all lanes share."""
    plain, lane_dim = _functorch._unwrap_batched(mask, level)
    if lane_dim is None and mask.ndim <= 4 and mask.shape[:-3].numel() == 1:
        return plain
    missing = [None] * (len(batch) + 3 - mask.ndim)
    of_lanes = with_lanes(mask, level, num_lanes)[(slice(None), *missing)]
    return of_lanes.expand(-1, *batch, -1, -1, -1).flatten(0, -4)
