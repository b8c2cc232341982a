"""An average of the weights over the updates, beside the weights themselves. No averaging is the null object."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from torch import nn

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.norms import is_sharded

PRELOAD = ("timm.utils",)


class Averaging(Protocol):
    """Built as `averaging(clock)`; `start` takes the model when it is on its device."""

    is_on: bool

    def start(self, model: nn.Module) -> None: ...

    def spread(self, shard: Callable[[nn.Module], None]) -> None:
        """Spread the averaged model over ranks, as the model is then."""
        ...

    def update(self, num_updates: int) -> None:
        """Take in the model's weights after `num_updates` completed updates."""
        ...

    def in_place_of(self, task: nn.Module) -> contextlib.AbstractContextManager[None]:
        """While it lasts, the task has the averaged model."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The averaged model's, its names without prefixes; empty where there is none."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class NoAveraging:
    """Nothing is averaged."""

    is_on = False

    def __init__(self, clock: Clock) -> None:
        del clock

    def start(self, model: nn.Module) -> None: ...

    def spread(self, shard: Callable[[nn.Module], None]) -> None: ...

    def update(self, num_updates: int) -> None: ...

    def in_place_of(self, task: nn.Module) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Ema:
    """Exponential moving average of weights and buffers: timm's `ModelEmaV3`, whose decay is a function of the update.

    Args:
        decay: share that the average keeps in an update, 0..1.
        min_decay: its least value during the warmup.
        start_after: until then the average is the model itself; a duration.
        warmup: let the decay rise as 1 - (1 + n / warmup_gamma) ** -warmup_power, n updates after the start.
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
                raise ConfigError(f"averaging.{key}", f"needs a number from 0 on, below 1; not {value}")
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

    def spread(self, shard: Callable[[nn.Module], None]) -> None:
        shard(self._ema.module)
        # One operation cannot take shards and buffers, which are whole.
        self._ema.foreach = not any(is_sharded(p) for p in self._ema.module.parameters())

    def update(self, num_updates: int) -> None:
        self._ema.update(self._model, step=num_updates)

    @contextlib.contextmanager
    def in_place_of(self, task: nn.Module) -> Generator[None]:
        own, task.model = task.model, self._ema.module
        try:
            yield
        finally:
            task.model = own

    def state_dict(self) -> dict[str, Any]:
        return self._ema.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ema.module.load_state_dict(state)
