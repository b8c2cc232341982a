"""Hooks: objects of the user that the training loop calls; what listens to a run; what they log; profilers."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, distributed

from hydrant.clock import Clock, Interval, Updates
from hydrant.errors import ConfigError, log_errors, suggestion
from hydrant.files.redaction import redacted, redacted_text
from hydrant.training.metrics import is_own

EVENTS = {
    "check": "plan",
    "on_start": "trainer",
    "before_update": "trainer, num_updates",
    "after_update": "trainer, num_updates",
    "on_log": "trainer, row",
    "on_evaluation_batch": "trainer, batch, outcome",
    "on_evaluation": "trainer, row",
    "after_evaluation": "trainer, row",
    "on_checkpoint": "trainer, path",
    "on_end": "trainer",
}
"""The methods that a hook may have, with their arguments. docs/guides/hooks.md says when each is called."""

UPDATE_EVENTS = ("before_update", "after_update")
"""The events that follow the `every` of a hook."""

Draw = Callable[[Path], None]
"""Writes a PNG."""


class Hooks:
    """The hooks of a run by name, in the order of the config; then its listeners (docs/reference/extensions.md).

    Listeners have no state in checkpoints. Their errors are logged only, except on several ranks, which may wait.
    """

    def __init__(self, hooks: Mapping[str, Any], listeners: Mapping[str, Any] = {}) -> None:
        self._hooks = dict(hooks)
        self._all = self._hooks | {f"listeners.{name}": one for name, one in listeners.items()}

    def listen_first(self, name: str, listener: Any) -> None:
        """Add a listener that is called before the others, because it may end the run."""
        self._all = {**self._hooks, f"listeners.{name}": listener, **self._all}

    def call(self, event: str, *arguments: Any, names: Collection[str] | None = None) -> None:
        """Call the method `event` of all hooks and listeners that have it, or of those in `names`."""
        for name in self._all if names is None else names:
            if method := getattr(self._all[name], event, None):
                is_alone = not distributed.is_initialized() or distributed.get_world_size() == 1
                with log_errors(f"{name}.{event}") if is_alone and name not in self._hooks else nullcontext():
                    method(*arguments)

    def listens(self, event: str) -> bool:
        """Return whether a hook or a listener has the method `event`."""
        return any(hasattr(one, event) for one in self._all.values())

    def of(self, kind: type) -> list[str]:
        """Return the names of the hooks of this class."""
        return [name for name, hook in self._hooks.items() if isinstance(hook, kind)]

    def intervals(self, clock: Clock) -> dict[str, Interval | Updates]:
        """Return the interval of each hook with a method for updates.

        Raises:
            ConfigError: `every` of a hook is neither a duration nor a list of durations.
        """
        called = {n: h for n, h in self._all.items() if any(hasattr(h, event) for event in UPDATE_EVENTS)}
        return {n: _interval(getattr(h, "every", None), clock, f"hooks.{n}.every") for n, h in called.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the hooks that have one. All ranks have equal states; the one of rank 0 is saved."""
        return {name: hook.state_dict() for name, hook in self._hooks.items() if hasattr(hook, "state_dict")}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the states. A hook that was added later (resume_strict=false) has no saved state."""
        for name in self.state_dict().keys() & states.keys():
            self._hooks[name].load_state_dict(states[name])


def _interval(every: Any, clock: Clock, key: str) -> Interval | Updates:
    if isinstance(every, list):
        return Updates(frozenset(clock.updates(duration, key) for duration in cast("list[Any]", every)))
    return Interval(1) if every is None else clock.interval(every, key)


def check_methods(key: str, hook: Any) -> None:
    kind, listing = type(hook).__name__, ", ".join(EVENTS)
    for name in dir(hook):
        if name.startswith("on_") and name not in EVENTS and callable(getattr(hook, name, None)):
            hint = suggestion(name, EVENTS, "Hooks have")
            raise ConfigError(f"{key}._target_", f"nothing calls the method {name} of {kind}", remedy=hint)
    methods = {name: getattr(hook, name) for name in EVENTS if hasattr(hook, name)}
    if not methods:
        raise ConfigError(f"{key}._target_", f"{kind} is no hook: it has none of the methods {listing}")
    for name, method in methods.items():
        try:
            inspect.signature(method).bind(*EVENTS[name].split(", "))
        except TypeError:
            message = f"{kind}.{name} is called as {name}({EVENTS[name]}), which it does not take"
            raise ConfigError(f"{key}._target_", message) from None
    if hasattr(hook, "state_dict") != hasattr(hook, "load_state_dict"):
        raise ConfigError(f"{key}._target_", f"{kind} needs both state_dict and load_state_dict, or none")


class MediaLogger:
    """Receives pictures, texts and tables, for the run folder and the trackers; this one discards them."""

    def picture(self, name: str, draw: Draw) -> None:
        """Log a picture; `draw` writes it as a PNG."""

    def text(self, name: str, text: str) -> None: ...

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None: ...


class HookLog:
    """`trainer.log`: collects what the hooks log after an update. The loop writes it with the row of that update.

    Every rank calls the same methods; rank 0 writes.

    >>> log = HookLog()
    >>> log.row({"norms/head": 0.5})
    >>> log.take()
    ({'norms/head': 0.5}, [])
    """

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}
        self._media: list[Callable[[MediaLogger], None]] = []

    def row(self, metrics: Mapping[str, Any]) -> None:
        """Add numbers, also tensors of one element, to the row of this update in `metrics.jsonl`.

        Raises:
            ValueError: a name has no group, as `norms` in `norms/head`, or one of those that the run writes itself.
        """
        for name, value in metrics.items():
            if "/" not in name or is_own(name):
                own = f"my_hook/{name.rpartition('/')[2]}"
                raise ValueError(f"log the metric {name!r} in a group of the hook's own, such as {own}")
            self._metrics[name] = float(value)

    def text(self, name: str, text: str) -> None:
        """Log a text as `texts/<name>/update_<num_updates>.txt`, without secrets."""
        public = redacted_text(text)
        self._media.append(lambda logger: logger.text(name, public))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table as `tables/<name>/update_<num_updates>.csv`, without secrets."""
        public = redacted([list(row) for row in rows])
        self._media.append(lambda logger: logger.table(name, columns, public))

    def picture(self, name: str, picture: Any) -> None:
        """Log a picture as `pictures/<name>/update_<num_updates>.png`.

        `picture` is a tensor, (3 or 1, H, W) in 0..1, a figure of matplotlib, an image of PIL, or a function that
        writes a PNG to the path that it gets.

        Raises:
            TypeError: it is none of these.
        """
        draw = as_draw(picture)
        self._media.append(lambda logger: logger.picture(name, draw))

    def take(self) -> tuple[dict[str, float], list[Callable[[MediaLogger], None]]]:
        """Return what was logged since the last call: the metrics, and functions that log the rest."""
        taken = self._metrics, self._media
        self._metrics, self._media = {}, []
        return taken


def draw_pixels(picture: Tensor, path: Path) -> None:
    """Write a picture, (3 or 1, H, W) in 0..1, as PNG."""
    from PIL import Image

    pixels = (picture.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).squeeze(2).numpy()
    Image.fromarray(pixels).save(path)


def as_draw(picture: Any) -> Draw:
    """Return the function that writes a picture as a PNG.

    Raises:
        TypeError: it is not a picture.
    """
    if isinstance(picture, Tensor):
        return partial(draw_pixels, picture.detach().float().cpu())
    for save in ("savefig", "save"):  # of matplotlib, of PIL
        if callable(getattr(picture, save, None)):
            return getattr(picture, save)
    if callable(picture):
        return cast("Draw", picture)
    kind = type(picture).__name__
    raise TypeError(f"a picture is a tensor, a figure, an image or a function that draws, not a {kind}")


Phase = Literal["data_wait", "forward", "backward", "optimizer", "log", "evaluation", "checkpoint", "other"]


class Profiler:
    """Profiles a window of the updates of a run. Built as `profiler(device, clock)`."""

    is_on = False

    def record(
        self, folder: Path, num_updates: int, on_file: Callable[[Path], None]
    ) -> AbstractContextManager[None]:
        """Return a context in which a run trains.

        Args:
            folder: where the profile is written.
            num_updates: completed updates when the context is entered.
            on_file: called with each file after it is written.
        """
        return nullcontext()

    def enter(self, phase: Phase, num_updates: int) -> None:
        """Mark the beginning of a phase, which lasts until the next call."""

    def advance(self) -> None:
        """Mark the end of an update, including its logging, evaluation and checkpoint."""


class NoProfiler(Profiler):
    """Profiles nothing."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        del device, clock
