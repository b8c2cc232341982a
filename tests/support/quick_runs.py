"""Runs of tests draw a pixel for each figure."""

import base64
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

PICTURES = "hydrant.extensions.pictures"
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)


def _save(_: object, path: Path | BinaryIO) -> None:
    path.write_bytes(_PIXEL) if isinstance(path, Path) else path.write(_PIXEL)


def draw_pixels(replace: Callable[[Any, str, Any], None]) -> None:
    """Let this process write a pixel for each figure: drawing takes a third of a short run's time.

    Its curves are in no panels then.
    """
    if find_spec(PICTURES):
        plotting = import_module(f"{PICTURES}.plotting")
        replace(plotting, "_save", _save)
        replace(plotting, "_panels", lambda *_: (SimpleNamespace(axes=()), ()))
