"""Averages of the weights over the updates, which are evaluated and saved in addition to the weights; or none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.optimizers.norms import local_tensors

PRELOAD = ("timm.utils",)


class Averaging(Protocol):
    """Averages the weights of a model. Built as `averaging(clock)`."""

    is_on: bool

    def start(self, model: nn.Module) -> None:
        """Start with the weights of a model that is on its device."""
        ...

    def shard(self, shard: Callable[[nn.Module], None]) -> None:
        """Shard the averaged model over the ranks, like the model itself."""
        ...

    def update(self, num_updates: int) -> None:
        """Add the weights that the model has after `num_updates` completed updates to the average."""
        ...

    def swapped_into(self, task: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the task uses the averaged model."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the averaged model, with names as in the model; empty without averaging."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class NoAveraging:
    """Averages nothing."""

    is_on = False

    def __init__(self, clock: Clock) -> None:
        del clock

    def start(self, model: nn.Module) -> None: ...

    def shard(self, shard: Callable[[nn.Module], None]) -> None: ...

    def update(self, num_updates: int) -> None: ...

    def swapped_into(self, task: nn.Module) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Ema:
    """Exponential moving average of weights and buffers: timm's `ModelEmaV3`, with a decay that depends on the update.

    Args:
        decay: weight of the old average in an update, at least 0 and below 1.
        min_decay: least decay during the warmup.
        start_after: duration in which the average equals the model.
        warmup: increase the decay as 1 - (1 + n / warmup_gamma) ** -warmup_power, n updates after the start.
        warmup_gamma, warmup_power: constants of this formula.
        exclude_buffers: copy buffers instead of averaging them.
    """

    is_on = True

    def __init__(
        self,
        clock: Clock,
        *,
        decay: float,
        min_decay: float,
        start_after: object,
        warmup: bool,
        warmup_gamma: float,
        warmup_power: float,
        exclude_buffers: bool,
    ) -> None:
        for key, value in {"decay": decay, "min_decay": min_decay}.items():
            if not 0 <= value < 1:
                raise ConfigError(f"averaging.{key}", f"needs a number from 0 to below 1, not {value}")
        self._settings: dict[str, Any] = {
            "decay": decay,
            "min_decay": min_decay,
            "update_after_step": clock.updates(start_after, "averaging.start_after"),
            "use_warmup": warmup,
            "warmup_gamma": warmup_gamma,
            "warmup_power": warmup_power,
            "exclude_buffers": exclude_buffers,
        }

    def start(self, model: nn.Module) -> None:
        from timm.utils import ModelEmaV3

        self._model, self._ema = model, ModelEmaV3(model, **self._settings)
        copied = {name for name, _ in model.named_buffers()} if self._ema.exclude_buffers else set[str]()
        state = model.state_dict(keep_vars=True)
        # A weight with several names is averaged under the first one only; timm averages it once for each name.
        names = {id(value): name for name, value in reversed(state.items())}
        state = {name: state[name] for name in reversed(names.values())}
        self._averaged = [n for n, value in state.items() if value.is_floating_point() and n not in copied]
        self._copied = [name for name in state if name not in self._averaged]

    def shard(self, shard: Callable[[nn.Module], None]) -> None:
        shard(self._ema.module)

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        # ModelEmaV3.update cannot take the shards of parameters together with unsharded buffers.
        weight = 1.0 - self._ema.get_decay(num_updates)
        # Without keep_vars, each entry would be detached by an operation of its own.
        averages, values = (m.state_dict(keep_vars=True) for m in (self._ema.module, self._model))
        average, value = _select(averages, self._averaged), _select(values, self._averaged)
        torch._foreach_lerp_(average, value, weight)  # pyright: ignore[reportPrivateUsage]
        if self._copied:
            copy, value = _select(averages, self._copied), _select(values, self._copied)
            torch._foreach_copy_(copy, value)  # pyright: ignore[reportPrivateUsage]

    @contextlib.contextmanager
    def swapped_into(self, task: nn.Module) -> Generator[None]:
        model, task.model = task.model, self._ema.module
        try:
            yield
        finally:
            task.model = model

    def state_dict(self) -> dict[str, Any]:
        return self._ema.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ema.module.load_state_dict(state)


def _select(state: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    return local_tensors(state[name] for name in names)
