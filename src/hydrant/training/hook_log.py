"""What hooks log: numbers for the next row of the run, pictures, texts and tables."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from hydrant.errors import log
from hydrant.files.redaction import redacted, redacted_text
from hydrant.training.metrics import is_own
from hydrant.training.plotting import draw_pixels

Draw = Callable[[Path], None]
"""Writes a PNG."""


class MediaLogger:
    """Receives pictures, texts and tables, for the run folder and the trackers; this one discards them."""

    def picture(self, name: str, draw: Callable[[Path], None]) -> None:
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
        self._names, self._doubles = set[str](), set[str]()  # of this update; of all updates

    def row(self, metrics: Mapping[str, Any]) -> None:
        """Add numbers, also tensors of one element, to the row of this update in `metrics.jsonl`.

        Raises:
            ValueError: a name has no group, as `norms` in `norms/head`, or one of those that the run writes itself.
        """
        for name, value in metrics.items():
            if "/" not in name:
                raise ValueError(f"the metric {name!r} needs a group in front, such as my_hook/{name}")
            if is_own(name):
                group, _, rest = name.partition("/")
                message = f"the run writes the metrics of the group {group} itself"
                raise ValueError(f"{message}; log {name!r} in another one, such as my_hook/{rest}")
            self._count("metric", name)
            self._metrics[name] = float(value)

    def text(self, name: str, text: str) -> None:
        """Log a text as `texts/<name>/update_<num_updates>.txt`, without secrets."""
        self._count("text", name)
        public = redacted_text(text)
        self._media.append(lambda logger: logger.text(name, public))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table as `tables/<name>/update_<num_updates>.csv`, without secrets."""
        self._count("table", name)
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
        self._count("picture", name)
        self._media.append(lambda logger: logger.picture(name, draw))

    def take(self) -> tuple[dict[str, float], list[Callable[[MediaLogger], None]]]:
        """Return what was logged since the last call: the metrics, and functions that log the rest."""
        taken = self._metrics, self._media
        self._metrics, self._media, self._names = {}, [], set()
        return taken

    def _count(self, kind: str, name: str) -> None:
        """Warn once if this update has such an entry already, which a later one replaces."""
        key = f"{kind} {name}"
        if key in self._names - self._doubles:
            log.warning("hooks log the %s twice in an update: the last one counts; give them two names", key)
            self._doubles.add(key)
        self._names.add(key)


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
