"""Try one stage of torch.compile on a config, and find the smallest graph that fails, each in a new process."""

import contextlib
import copy
import io
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hydrant.errors import CompileError, CompileMismatch, location, typed_line
from hydrant.optimizers.clipping import exceeds_distance
from hydrant.training.compile.base import Incident, parse_frames
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.micro_batch import scratch_trainer
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


_CAPTURE = "hydrant_capture"
_MAX_SECONDS = 600  # for the whole search

Graph = torch.fx.GraphModule
Arguments = Sequence[Any]
Fails = Callable[[Graph, Arguments], bool]


@dataclass(frozen=True)
class SmallestFailure:
    """The smallest graph that fails."""

    location: str  # file:line of the code of its last operation
    graph: str  # as Python code
    inputs: list[str]  # dtype and shape of each


def find_smallest_failure(
    failing: Mapping[str, Any], traced: Mapping[str, Any], verdict: Verdict
) -> SmallestFailure | str:
    """Reduce the first graph of a micro-batch that fails. Return the result, or the reason why there is none.

    Args:
        failing: the config whose compile settings fail.
        traced: the config whose graphs are captured.
        verdict: how it fails: with an `error`, or the result `differs` from eager.
    """
    from torch._dynamo import register_backend

    register_backend(_capture_backend, name=_CAPTURE)
    settings, captured = failing["compile"], {**traced["compile"], "backend": _CAPTURE}
    with scratch_trainer(prepare({**traced, "compile": captured})) as trainer:
        with contextlib.suppress(Exception):  # keep the graphs captured before the error
            first_gradients(trainer)
        fails = _failure_test(settings, verdict, trainer.plan.precision.tolerance)
        with (
            trainer.plan.precision.autocast(),
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),  # the minifier leaves files
            contextlib.redirect_stderr(io.StringIO()),  # the minifier prints
        ):
            try:
                for graph, arguments in _graphs:
                    if fails(graph, arguments):
                        return _minimize(graph, arguments, fails)
            except TimeoutError:
                return f"the search for the smallest graph that fails took longer than {_MAX_SECONDS} s"
    if not _graphs:
        return "no graph was traced, so there is nothing to minify"
    return f"none of the {len(_graphs)} graphs fails alone, so there is nothing to minify"


# The captured graphs. Never cleared, because each search has its own process.
_graphs: list[tuple[Graph, Arguments]] = []


def _capture_backend(graph: Graph, inputs: Arguments) -> Callable[..., Any]:
    """A backend that runs a graph unchanged, and captures it with the arguments of its first call."""
    del inputs
    original, is_captured = copy.deepcopy(graph), False

    def call(*arguments: Any) -> Any:
        nonlocal is_captured
        if not is_captured:
            _graphs.append((original, [_copy(value) for value in arguments]))
            is_captured = True
        return graph(*arguments)

    return call


def _failure_test(settings: Mapping[str, Any], verdict: Verdict, tolerance: float) -> Fails:
    """Return a function that tells whether a graph fails with these settings in the same way.

    The function raises TimeoutError when the search has taken too long.
    """
    name = "options" if settings["options"] else "mode"  # torch.compile takes one of them
    deadline = time.monotonic() + _MAX_SECONDS

    def fails(graph: Graph, arguments: Arguments) -> bool:
        if time.monotonic() > deadline:
            raise TimeoutError
        torch.compiler.reset()
        eager = _results(graph, arguments)
        try:
            built = torch.compile(copy.deepcopy(graph), backend=settings["backend"], **{name: settings[name]})
            results = _results(built, arguments)
        except Exception:  # a backend may raise anything
            return verdict == "error"
        return verdict == "differs" and any(
            exceeds_distance(a, b, tolerance * max(float(a.norm()), 1e-3))
            for a, b in zip(eager, results, strict=True)
        )

    return fails


def _results(function: Callable[..., Any], arguments: Arguments) -> list[Tensor]:
    """Return the outputs of a graph and the gradients of their sum."""
    inputs = [_copy(value) for value in arguments]
    torch.manual_seed(0)
    outputs = function(*inputs)
    results = [o for o in outputs if isinstance(o, Tensor) and o.is_floating_point()]
    roots = [o.double().sum() for o in results if o.requires_grad]
    leaves = [i for i in inputs if isinstance(i, Tensor) and i.requires_grad]
    if roots and leaves:
        total = torch.stack(roots).sum()
        results += torch.autograd.grad(total, leaves, materialize_grads=True)
    return [t.detach().double() for t in results]


def _copy(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _minimize(graph: Graph, arguments: Arguments, fails: Fails) -> SmallestFailure | str:
    from torch._functorch.fx_minifier import minifier

    try:
        small, inputs = minifier(graph, arguments, fails, dump_state=_discard)
    except TimeoutError:
        raise
    except Exception as error:  # the minifier is a tool for developers of torch and may raise anything
        return f"PyTorch's minifier failed ({typed_line(error)})"
    operations = [node for node in small.graph.nodes if node.op.startswith("call")]
    return SmallestFailure(
        location=_line_of(operations[-1].meta.get("stack_trace") or "") if operations else "",
        graph=small.code.strip(),
        inputs=[_describe(value) for value in inputs],
    )


def _discard(*_: object) -> None: ...


def _line_of(stack: str) -> str:
    """Return file:line of the innermost frame outside torch, else of the innermost one, or "" if there is none."""
    frames = parse_frames(stack)
    outside = [(file, line) for file, line in frames if f"{os.sep}torch{os.sep}" not in file] or frames
    return f"{outside[-1][0]}:{outside[-1][1]}" if outside else ""


def _describe(value: Any) -> str:
    is_tensor = isinstance(value, Tensor)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" if is_tensor else repr(value)
