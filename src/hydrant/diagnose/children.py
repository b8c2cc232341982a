"""Questions that are answered in a process of their own: what they break, or set, ends with it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from hydrant.bare import bare_run
from hydrant.build import prepare
from hydrant.compilation import Incident
from hydrant.config.targets import slow_imports
from hydrant.errors import CompileError, CompileMismatch, ConfigError, location, typed_line
from hydrant.isolation import ProcessDied, Stopped, call_isolated
from hydrant.trial import check_compiled, measure

T = TypeVar("T")
Verdict = Literal["ok", "differs", "error"]


@dataclass(frozen=True)
class Stage:
    """What a stage of torch.compile made of a config."""

    name: str  # eager, dynamo, aot_eager, or the backend
    verdict: Verdict
    told: str = ""


def ask(question: Callable[..., T], config: Mapping[str, Any], *more: Any) -> T | ProcessDied:
    """The answer to a question about a config.

    Raises:
        ConfigError: the config cannot run.
        Stopped: a signal arrived meanwhile.
    """
    answer = call_isolated(_answer, (question, config, *more), preload=[__name__, *slow_imports([config])])
    if answer.signum is not None:
        raise Stopped(128 + answer.signum)
    if isinstance(answer.result, ConfigError):
        raise answer.result
    return answer.result


def _answer(question: Callable[..., T], *arguments: Any) -> T | ConfigError:
    os.dup2(2, 1)  # what a model prints is not part of the report
    logging.disable(logging.WARNING)  # nor what torch says of graph breaks
    try:
        return question(*arguments)
    except ConfigError as error:
        return error


def graph_breaks(config: Mapping[str, Any], reads_scalars: bool) -> list[Incident]:
    """The graph breaks of a first micro-batch, forward and backward.

    `reads_scalars` lets Dynamo trace what reads a number from a tensor, and so come to the breaks behind it.
    """
    import torch._dynamo

    torch._dynamo.config.capture_scalar_outputs = reads_scalars
    with bare_run(prepare(config)) as run:
        with contextlib.suppress(Exception):  # what fails is told by the stages
            measure(run)
        run.compilation.follow(0)
        return run.compilation.report().graph_breaks


def try_stage(config: Mapping[str, Any], name: str) -> Stage:
    """Loss and gradients of a first micro-batch: do they come, and are they the eager ones?"""
    with bare_run(prepare(config)) as run:
        try:
            if run.compilation.is_on:
                check_compiled(run)
            else:
                measure(run)
        except CompileMismatch as error:
            return Stage(name, "differs", str(error))
        except CompileError as error:
            return Stage(name, "error", str(error))
        except Exception as error:  # a user's model raises anything
            return Stage(name, "error", f"{typed_line(error)} (at {location(error)})")
    return Stage(name, "ok")
