"""Averages of the weights over the updates, which are evaluated and saved in addition to the weights; or none."""

import contextlib
import copy
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from hydrant.batch import is_inexact, widened
from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.files.plain_values import RatioBelowOne
from hydrant.optimizers.kernels import local_tensors


class Averaging:
    """Averages the weights of a model; this one nothing. Built as `averaging(clock)`."""

    is_on = False
    counts_skipped = False
    """An update that is not applied counts too, with the weights as they are."""
    infinite: Collection[str] = ()
    """The names of values that hold infinity before a run begins, such as masks. They are copied, not averaged."""

    def __init__(self, clock: Clock) -> None: ...

    def start(self, model: nn.Module) -> None:
        """Start with the weights of a model that is on its device."""

    def shard(self, shard: Callable[[nn.Module], None]) -> None:
        """Shard the averaged model over the ranks, like the model itself."""

    def update(self, num_updates: int) -> None:
        """Add the weights that the model has after `num_updates` completed updates to the average."""

    def swapped_into(self, task: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the task uses the averaged model."""
        return contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the averaged model, with names as in the model; empty without averaging."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


NoAveraging = Averaging
"""The name of a class that averages nothing, in configs."""


class ModelAverage(Averaging):
    """An average in a copy of the model. A subclass calls `begin` in its `start`, and gives the `weight` of an update.

    Attributes:
        averaged: the names of the weights and buffers that are averaged.
        copied: the names of those that are copied.
    """

    is_on = True
    averaged: Sequence[str]
    copied: Sequence[str]

    def weight(self, num_updates: int) -> float:
        """Return how far the average moves towards the model after `num_updates`: 1: it becomes the model; 0: it
        stays."""
        raise NotImplementedError

    def update(self, num_updates: int) -> None:
        if weight := self.weight(num_updates):
            self.move(weight)

    def begin(self, model: nn.Module, average: nn.Module, copied: Collection[str] = ()) -> None:
        """Average the model in `average`, which has the same weights; `copied` names values to copy instead.

        Numbers that are no floats are copied too, and `infinite` ones.
        """
        self._model, self._average = model, average
        state = each_once(model.state_dict(keep_vars=True))
        copied = {*copied, *self.infinite}
        self.averaged = [n for n, value in state.items() if is_inexact(value) and n not in copied]
        self.copied = [name for name in state if name not in self.averaged]
        self._widen()

    @torch.no_grad()
    def move(self, weight: float) -> None:
        """Move the average towards the model by this ratio of the distance; 1: it becomes the model."""
        averages, values = self.states()
        # ModelEmaV3.update cannot take the shards of parameters together with unsharded buffers.
        average, value = _select(averages, self.averaged), _select(values, self.averaged)
        torch._foreach_lerp_(average, list(map(widened, value)), weight)
        if self.copied:
            old, value = _select(averages, self.copied), _select(values, self.copied)
            torch._foreach_copy_(old, value)

    def states(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights and buffers of the average and of the model, by name."""
        # Without keep_vars, each entry would be detached by an operation of its own.
        state = self._average.state_dict(keep_vars=True)
        if self._wide:  # a weight may have several names
            wide = {id(state[name]): value for name, value in self._wide.items()}
            state = {name: wide.get(id(value), value) for name, value in state.items()}
        return state, self._model.state_dict(keep_vars=True)

    def shard(self, shard: Callable[[nn.Module], None]) -> None:
        shard(self._average)
        self._widen()

    @torch.no_grad()
    def _widen(self) -> None:
        """Keep averages of 16 bits in float32: in bfloat16, a change below 1/256 of a weight would be lost."""
        state = self._average.state_dict(keep_vars=True)
        self._wide = {n: state[n].float() for n in self.averaged if widened(state[n]) is not state[n]}

    @contextlib.contextmanager
    def swapped_into(self, task: nn.Module) -> Generator[None]:
        self._average.load_state_dict(self._wide, strict=False)
        model, task.model = task.model, self._average
        try:
            yield
        finally:
            task.model = model

    def state_dict(self) -> dict[str, Any]:
        return {name: value.detach() for name, value in self.states()[0].items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._average.load_state_dict(state)
        for name, value in self._wide.items():
            value.copy_(state[name])


def infinite_in(model: nn.Module) -> list[str]:
    """Return the names of the weights and buffers that hold infinity."""
    state = [(name, value) for name, value in model.state_dict().items() if isinstance(value, Tensor)]
    floats = [(name, value) for name, value in state if is_inexact(value) and value.layout is torch.strided]
    return [name for name, value in floats if bool(value.isinf().any())]


def each_once(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of `state_dict(keep_vars=True)`; a weight with several names under the first one only."""
    names = {id(value): name for name, value in reversed(state.items())}
    return {name: state[name] for name in reversed(names.values())}


class Ema(ModelAverage):
    """Exponential moving average of weights and buffers: timm's `ModelEmaV3`, with a decay that depends on the update.

    Args:
        decay: weight of the old average in an update. At least 0 and below 1.
        min_decay: least decay during the warmup.
        start_after: duration in which the average equals the model.
        warmup: the decay of update n is at most 1 - (1 + (n - 1) / warmup_gamma) ** -warmup_power. Updates count from
            the start of averaging.
        warmup_gamma, warmup_power: constants of this formula.
        exclude_buffers: True: copy buffers, such as batch norm statistics, instead of averaging them.

    Raises:
        ConfigError: a decay is out of its range.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        decay: RatioBelowOne,
        min_decay: RatioBelowOne,
        start_after: object,
        warmup: bool,
        warmup_gamma: float,
        warmup_power: float,
        exclude_buffers: bool,
    ) -> None:
        self._start = clock.updates(start_after, "averaging.start_after")
        self._decay, self._min_decay, self._exclude_buffers = decay, min_decay, exclude_buffers
        self._warmup = (warmup_gamma, warmup_power) if warmup else None

    def start(self, model: nn.Module) -> None:
        copied = {name for name, _ in model.named_buffers()} if self._exclude_buffers else set[str]()
        self.begin(model, copied_model(model).eval(), copied)

    def weight(self, num_updates: int) -> float:
        count = num_updates - self._start - 1
        if count <= 0:
            return 1.0
        if self._warmup is None:
            return 1.0 - self._decay
        gamma, power = self._warmup
        return 1.0 - max(min(1 - (1 + count / gamma) ** -power, self._decay), self._min_decay)


class TailAverage(ModelAverage):
    """The mean of the weights and buffers in the last part of training.

    Tail averaging: Jain et al., "Parallelizing stochastic gradient descent for least squares regression", 2018. LAWA:
    Kaddour, "Stop wasting my time! Saving days of ImageNet and BERT training with latest weight averaging", 2022.

    Args:
        start: duration after which averaging begins; until then, the average equals the model.
        every: duration from one of the averaged weights to the next. The first ones are those at the end of the first
            such duration in the tail.

    Raises:
        ConfigError: no weights are in the tail.
    """

    counts_skipped = True

    def __init__(self, clock: Clock, *, start: object, every: object) -> None:
        self._start = clock.updates(start, "averaging.start")
        self._every = clock.since(self._start).interval(every, "averaging.every")
        length = clock.total_updates - self._start
        if length < 1 or not self._every.count(length):
            key = "averaging.every" if length > 0 else "averaging.start"
            message = f"no weights are averaged in the {max(length, 0)} updates after averaging.start"
            raise ConfigError(key, message, remedy="begin earlier, such as at 80%, or average more often")

    def start(self, model: nn.Module) -> None:
        self.begin(model, copied_model(model).eval())

    def weight(self, num_updates: int) -> float:
        place = num_updates - self._start
        count = self._every.count(place) if place > 0 else 0
        if not count:
            return 1.0
        return 1.0 / count if self._every.due(place) else 0.0


def copied_model(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model. A function in its attributes, such as `self.mlp = lambda x: self.proj(x)`, calls
    the parts of the copy. `copy.deepcopy` copies no function: in its copy, this one calls the parts of the original.
    """
    # By `id` of what they are of. What torch computes again, as its old weight_norm does, it refuses to copy.
    values = [value for module in model.modules() for value in vars(module).values()]
    copies: dict[int, Any] = {
        id(t): t.detach().clone() for t in values if isinstance(t, Tensor) and t.grad_fn
    }
    copied = copy.deepcopy(model, copies)

    def of_copy(cell: CellType) -> CellType:
        with contextlib.suppress(KeyError, ValueError):  # it holds no part of the model, or is empty
            return CellType(copies[id(cell.cell_contents)])
        return cell

    for module in copied.modules():
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__closure__:
                own = value.__code__, value.__globals__, name, value.__defaults__
                function = FunctionType(*own, tuple(map(of_copy, value.__closure__)))
                function.__kwdefaults__ = value.__kwdefaults__
                vars(function).update(vars(value))
                vars(module)[name] = function
    return copied


def _select(state: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    return local_tensors(state[name] for name in names)
