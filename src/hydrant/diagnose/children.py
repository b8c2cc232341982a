"""What is asked of a config, in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hydrant.bare import bare_run
from hydrant.build import prepare
from hydrant.compilation import Incident
from hydrant.errors import CompileError, CompileMismatch, location, typed_line
from hydrant.trial import check_compiled, check_repeatable, first_gradients

Verdict = Literal["ok", "differs", "error"]


@dataclass(frozen=True)
class Stage:
    """What a stage of torch.compile made of a config."""

    name: str  # eager, dynamo, aot_eager, or the backend
    verdict: Verdict
    told: str = ""


def graph_breaks(config: Mapping[str, Any], reads_scalars: bool) -> list[Incident]:
    """The graph breaks of a first micro-batch, forward and backward.

    `reads_scalars` lets Dynamo trace what reads a number from a tensor, and so come to the breaks behind it.
    """
    import torch._dynamo

    torch._dynamo.config.capture_scalar_outputs = reads_scalars
    with bare_run(prepare(config)) as run:
        with contextlib.suppress(Exception):  # what fails is told by the stages
            first_gradients(run)
        run.compilation.follow(0)
        return run.compilation.report().graph_breaks


def try_stage(config: Mapping[str, Any], name: str) -> Stage:
    """Loss and gradients of a first micro-batch: do they come, and are they the eager ones?"""
    with bare_run(prepare(config)) as run:
        try:
            if run.compilation.is_on:
                check_compiled(run)
            else:
                check_repeatable(run)
        except CompileMismatch as error:
            return Stage(name, "differs", str(error))
        except CompileError as error:
            return Stage(name, "error", str(error))
        except Exception as error:  # a user's model raises anything
            return Stage(name, "error", f"{typed_line(error)} (at {location(error)})")
    return Stage(name, "ok")
