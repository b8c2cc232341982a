"""A run without a folder: to be tried or measured."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping

from torch import Tensor

from hydrant.build import Prepared, build
from hydrant.parts import Run


@contextlib.contextmanager
def bare_run(prepared: Prepared) -> Generator[Run]:
    """The run on its device; it records and saves nothing, and ends with the block."""
    run = build(prepared, _Nowhere(), lambda run, is_best: None, lambda: None)
    try:
        with prepared.world.group():
            yield run
    finally:
        run.stream.close()


class _Nowhere:
    """The null journal."""

    def advance(self) -> None: ...

    def log(self, row: Mapping[str, float]) -> None: ...

    def picture(self, name: str, picture: Tensor) -> None: ...
