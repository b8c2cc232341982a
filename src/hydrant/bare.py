"""A run without a folder, to be tried or measured, mostly in a process of its own."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from hydrant.build import Prepared, build, prepare
from hydrant.config.targets import imports_of
from hydrant.errors import ConfigError
from hydrant.isolation import ProcessDied, Stopped, call_isolated
from hydrant.parts import NoJournal, Run

T = TypeVar("T")


def ask(
    function: Callable[..., T], config: Mapping[str, Any], *more: Any, preload: Sequence[str] | None = None
) -> T | ConfigError | ProcessDied:
    """`function(config, *more)` in a process of its own: what it breaks, or sets, ends with it.

    What a model prints there goes to stderr, and nothing is logged.

    Args:
        preload: modules that are imported before; those of the config's parts, unless given.

    Raises:
        Stopped: a signal arrived meanwhile.
    """
    modules = imports_of([config]) if preload is None else preload
    answer = call_isolated(
        _answer, (function, config, *more), preload=[__name__, function.__module__, *modules]
    )
    if answer.signum is not None:
        raise Stopped(128 + answer.signum)
    return answer.result


def check_horizon(config: Mapping[str, Any], needed: int) -> None:
    """Raises ConfigError where a run of this config makes fewer updates than needed, or cannot be."""
    answer = ask(_look, config, needed)
    if isinstance(answer, ConfigError):
        raise answer


def _look(config: Mapping[str, Any], needed: int) -> None:
    prepare_for(config, needed)


def prepare_for(config: Mapping[str, Any], needed: int) -> Prepared:
    """`prepare` a run that makes so many updates.

    Raises:
        ConfigError: it makes fewer, or cannot be.
    """
    prepared = prepare(config)
    total = prepared.clock.total_updates
    if total < needed:
        told = f"{total} updates are fewer than the {needed} to make; give duration={needed}"
        raise ConfigError("duration", told)
    return prepared


def _answer(function: Callable[..., T], *arguments: Any) -> T | ConfigError:
    os.dup2(2, 1)
    logging.disable(logging.WARNING)
    try:
        return function(*arguments)
    except ConfigError as error:
        return error


@contextlib.contextmanager
def bare_run(prepared: Prepared) -> Generator[Run]:
    """The run on its device; it records and saves nothing, and ends with the block."""
    with prepared.world.group():
        run = build(prepared, NoJournal(), lambda run, is_best: None, lambda: None)
        try:
            yield run
        finally:
            run.stream.close()
