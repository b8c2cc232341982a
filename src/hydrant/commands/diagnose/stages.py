"""Try one stage of torch.compile on a config. Each function runs in a new process."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hydrant.errors import CompileError, CompileMismatch, location, typed_line
from hydrant.training.compile.monitor import Incident
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.scratch import scratch_trainer
from hydrant.training.prepare.verify_compile import check_compiled, check_repeatable, first_gradients

Verdict = Literal["ok", "differs", "error"]


@dataclass(frozen=True)
class Stage:
    """The result of one stage of torch.compile."""

    name: str  # eager, dynamo, aot_eager, or the backend
    verdict: Verdict
    message: str = ""  # of the error or the difference


def graph_breaks(config: Mapping[str, Any], reads_scalars: bool) -> list[Incident]:
    """Return the graph breaks of a first micro-batch, forward and backward.

    With `reads_scalars`, Dynamo also traces code that reads numbers from tensors, and so reaches later breaks.
    """
    import torch._dynamo

    torch._dynamo.config.capture_scalar_outputs = reads_scalars
    with scratch_trainer(prepare(config)) as trainer:
        with contextlib.suppress(Exception):  # the stages report failures
            first_gradients(trainer)
        trainer.plan.compilation.check_recompiles(0)
        return trainer.plan.compilation.report().graph_breaks


def try_stage(config: Mapping[str, Any], name: str) -> Stage:
    """Compute loss and gradients of a first micro-batch and compare them with eager."""
    with scratch_trainer(prepare(config)) as trainer:
        try:
            if trainer.plan.compilation.is_on:
                check_compiled(trainer)
            else:
                check_repeatable(trainer)
        except CompileMismatch as error:
            return Stage(name, "differs", str(error))
        except CompileError as error:
            return Stage(name, "error", str(error))
        except Exception as error:  # user code may raise anything
            return Stage(name, "error", f"{typed_line(error)} (at {location(error)})")
    return Stage(name, "ok")
