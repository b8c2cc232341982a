"""The smallest graph that still fails, by PyTorch's own minifier, and the line of code it came from."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hydrant.bare import bare_run
from hydrant.build import prepare
from hydrant.compilation import frames_of
from hydrant.diagnose.children import Verdict
from hydrant.errors import typed_line
from hydrant.trial import differs, first_gradients

_CAPTURE = "hydrant_capture"
_MAX_SECONDS = 600  # to look for it

Graph = torch.fx.GraphModule
Arguments = Sequence[Any]
Fails = Callable[[Graph, Arguments], bool]


@dataclass(frozen=True)
class Culprit:
    """The least that fails."""

    location: str  # file:line of the code that the operation comes from
    graph: str  # what is left, as code
    inputs: list[str]  # of it: dtype and shape
    part: str  # of Inductor, by PyTorch's bisector; "" where that names none


def find_culprit(failing: Mapping[str, Any], traced: Mapping[str, Any], verdict: Verdict) -> Culprit | str:
    """Look for it in the graphs of `traced`, compiled as `failing` says; why there is none, where there is none."""
    settings = failing["compile"]
    with bare_run(prepare(_capturing(traced))) as run:
        graphs = _capture(lambda: first_gradients(run))
        fails = _failing(settings, verdict, run.precision.tolerance)
        with run.precision.autocast(), _aside():
            for graph, arguments in graphs:
                if fails(graph, arguments):
                    return _minimise(graph, arguments, fails, settings["backend"])
    if not graphs:
        return "no graph was traced, so there is nothing to make smaller"
    return f"none of the {len(graphs)} graphs fails by itself, so there is nothing to make smaller"


def _capturing(config: Mapping[str, Any]) -> Mapping[str, Any]:
    from torch._dynamo import register_backend

    register_backend(_noted, name=_CAPTURE)
    return {**config, "compile": {**config["compile"], "backend": _CAPTURE}}


_graphs: list[tuple[Graph, Arguments]] = []


def _noted(graph: Graph, inputs: Arguments) -> Callable[..., Any]:
    """A backend that runs a graph as it is, and notes it with what it is given first."""
    del inputs
    kept, is_new = copy.deepcopy(graph), True

    def call(*arguments: Any) -> Any:
        nonlocal is_new
        if is_new:
            _graphs.append((kept, [_fresh(value) for value in arguments]))
            is_new = False
        return graph(*arguments)

    return call


def _capture(function: Callable[[], object]) -> list[tuple[Graph, Arguments]]:
    with contextlib.suppress(Exception):  # what it has noted before is what there is
        function()
    return _graphs


def _failing(settings: Mapping[str, Any], verdict: Verdict, tolerance: float) -> Fails:
    own = {"options": settings["options"]} if settings["options"] else {"mode": settings["mode"]}
    until = time.monotonic() + _MAX_SECONDS

    def fails(graph: Graph, arguments: Arguments) -> bool:
        if time.monotonic() > until:
            raise TimeoutError(f"{_MAX_SECONDS} s are over")
        torch.compiler.reset()
        eager = _results(graph, arguments)
        try:
            compiled = _results(
                torch.compile(copy.deepcopy(graph), backend=settings["backend"], **own), arguments
            )
        except Exception:  # a backend raises anything
            return verdict == "error"
        return verdict == "differs" and any(
            differs(a, b, tolerance * max(float(a.norm()), 1e-3))
            for a, b in zip(eager, compiled, strict=True)
        )

    return fails


def _results(function: Callable[..., Any], arguments: Arguments) -> list[Tensor]:
    """The outputs of a graph, and the gradients of their sum."""
    given = [_fresh(value) for value in arguments]
    torch.manual_seed(0)
    outputs = function(*given)
    found = [o for o in outputs if isinstance(o, Tensor) and o.is_floating_point()]
    roots = [o.double().sum() for o in found if o.requires_grad]
    leaves = [g for g in given if isinstance(g, Tensor) and g.requires_grad]
    if roots and leaves:
        total = torch.stack(roots).sum()
        found += torch.autograd.grad(total, leaves, materialize_grads=True)
    return [t.detach().double() for t in found]


def _fresh(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _minimise(graph: Graph, arguments: Arguments, fails: Fails, backend: str) -> Culprit | str:
    from torch._functorch.fx_minifier import minifier

    try:
        small, left = minifier(graph, arguments, fails, dump_state=_not_kept)
    except Exception as error:  # it is a tool for developers of torch
        return f"PyTorch's minifier gives up on it ({typed_line(error)})"
    operations = [node for node in small.graph.nodes if node.op.startswith("call")]
    return Culprit(
        location=_line_of(operations[-1].meta.get("stack_trace") or "") if operations else "",
        graph=small.code.strip(),
        inputs=[_described(value) for value in left],
        part=_bisect(small, left, fails) if backend == "inductor" else "",
    )


def _not_kept(*_: object) -> None: ...


def _bisect(graph: Graph, arguments: Arguments, fails: Fails) -> str:
    from torch._inductor.compiler_bisector import CompilerBisector

    try:
        found = CompilerBisector.do_bisect(lambda: not fails(graph, arguments))
    except Exception:  # it gives up so
        return ""
    told = [found.backend, found.subsystem, found.debug_info] if found else []
    return ", ".join(str(word) for word in told if word)


def _line_of(stack: str) -> str:
    """The innermost line outside torch."""
    frames = frames_of(stack)
    own = [(file, line) for file, line in frames if f"{os.sep}torch{os.sep}" not in file] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def _described(value: Any) -> str:
    return (
        f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, Tensor)
        else repr(value)
    )


@contextlib.contextmanager
def _aside() -> Generator[None]:
    """The minifier tells its every move and leaves files where it works."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        yield
