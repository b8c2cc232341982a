"""A run without a folder: to be tried or measured."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from hydrant.build import Prepared, build
from hydrant.parts import NoJournal, Run


@contextlib.contextmanager
def bare_run(prepared: Prepared) -> Generator[Run]:
    """The run on its device; it records and saves nothing, and ends with the block."""
    run = build(prepared, NoJournal(), lambda run, is_best: None, lambda: None)
    try:
        with prepared.world.group():
            yield run
    finally:
        run.stream.close()
