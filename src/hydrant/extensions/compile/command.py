"""`hydrant diagnose`: find graph breaks, the failing stage of torch.compile, and the smallest failing graph.
`hydrant backends`: say of each backend of torch.compile whether it runs here.

The configs that it compares differ from the given one only in `compile`. Each stage is tried in a new process.
"""

import contextlib
import copy
import io
import linecache
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import torch
import torch._dynamo
from torch import Tensor

from hydrant.commands.registry import page
from hydrant.config.check import check
from hydrant.config.command_line import Flags
from hydrant.config.compose import compose, uncompiled
from hydrant.errors import CompileError, CompileMismatch, ConfigError, location, typed_line
from hydrant.extensions.compile import checks
from hydrant.extensions.compile.compiled_task import backend_names, missing_package
from hydrant.optimizers.kernels import exceeds_distance
from hydrant.records import Answer
from hydrant.sweeps.fork_server.call import ProcessDied, check_num_updates, run_isolated
from hydrant.terminal.console import emit, notice, relative, tell
from hydrant.training.compilation import Incident
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.micro_batch import scratch_trainer

Verdict = Literal["ok", "differs", "error"]


class Stage(Answer):
    """A stage of compilation.

    Attributes:
        name: `eager`, `dynamo`, `aot_eager`, or the backend.
    """

    name: str
    verdict: Verdict
    message: str = ""


class Diagnose(Answer):
    """What torch.compile does with a config. With findings, the exit status is 1.

    Attributes:
        compile: The settings.
        graph_breaks_behind: Those that appear when the first ones are mended.
        stages: The stages that were tried.
        culprit: The smallest graph that fails, or why there is none.
    """

    findings: Sequence[str]
    compile: Mapping[str, Any]
    graph_breaks: Sequence[Mapping[str, Any]]
    graph_breaks_behind: Sequence[Mapping[str, Any]]
    stages: Sequence[Stage]
    culprit: Any


def graph_breaks(config: Mapping[str, Any], reads_scalars: bool) -> list[Incident]:
    """Return the graph breaks of a first micro-batch, forward and backward.

    With `reads_scalars`, Dynamo also traces code that reads numbers from tensors, and so reaches later breaks.
    """
    torch._dynamo.config.capture_scalar_outputs = reads_scalars
    with scratch_trainer(prepare(config)) as trainer:
        with contextlib.suppress(Exception):  # the stages report failures
            checks.first_gradients(trainer)
        trainer.plan.compilation.check_recompiles(0)
        return trainer.plan.compilation.report().graph_breaks


def try_stage(config: Mapping[str, Any], name: str) -> Stage:
    """Compute loss and gradients of a first micro-batch and compare them with eager."""
    with scratch_trainer(prepare(config)) as trainer:
        try:
            plan, gradients = trainer.plan, partial(checks.first_gradients, trainer)
            if plan.compilation.is_on:
                plan.compilation.check_first(gradients, plan, 0)
            else:
                checks.check_repeatable(gradients, plan)
        except CompileMismatch as error:
            return Stage(name, "differs", str(error))
        except CompileError as error:
            return Stage(name, "error", str(error))
        except Exception as error:  # user code may raise anything
            return Stage(name, "error", f"{typed_line(error)} (at {location(error)})")
    return Stage(name, "ok")


_CAPTURE = "hydrant_capture"

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
    torch._dynamo.register_backend(_capture_backend, name=_CAPTURE)
    settings, captured = failing["compile"], {**traced["compile"], "backend": _CAPTURE}
    with scratch_trainer(prepare({**traced, "compile": captured})) as trainer:
        with contextlib.suppress(Exception):  # keep the graphs captured before the error
            checks.first_gradients(trainer)
        fails = _failure_test(settings, verdict, trainer.plan.precision.tolerance)
        with (
            trainer.plan.precision.autocast(),
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),  # the minifier leaves files
            contextlib.redirect_stderr(io.StringIO()),  # the minifier prints
        ):
            for graph, arguments in _graphs:
                if fails(graph, arguments):
                    return _minimize(graph, arguments, fails)
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
    """Return a function that tells whether a graph fails with these settings in the same way."""
    name = "options" if settings["options"] else "mode"  # torch.compile takes one of them

    def fails(graph: Graph, arguments: Arguments) -> bool:
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
    from torch._functorch import fx_minifier  # noqa: PLC2701  # the only minifier

    minifier: Any = fx_minifier.minifier
    try:
        small, inputs = minifier(graph, arguments, fails, dump_state=lambda *_: None)  # pyrefly: ignore[implicit-any-lambda]  # of any arguments
    except Exception as error:  # the minifier is a tool for developers of torch and may raise anything
        return f"PyTorch's minifier failed ({typed_line(error)})"
    operations = [node for node in small.graph.nodes if node.op.startswith("call")]
    frames = checks.parse_frames(operations[-1].meta.get("stack_trace") or "") if operations else []
    shown = (f"{x.dtype}{list(x.shape)}" if isinstance(x, Tensor) else repr(x) for x in inputs)
    kinds = [text.removeprefix("torch.") for text in shown]
    return SmallestFailure(checks.user_line(frames), small.code.strip(), kinds)


_SHOWN = ("backend", "mode", "scope", "dynamic", "options")  # of the settings
_VERDICTS = {"ok": "ok", "differs": "computes another result than eager", "error": "fails"}


def _findings(settings: Mapping[str, Any], breaks: Sequence[Incident], last: Stage) -> list[str]:
    """Return a line for each problem of the given config."""
    findings: list[str] = []
    if len(breaks) > (settings["max_graph_breaks"] or 0):
        note = "" if settings["fullgraph"] is False else "; compile.fullgraph fails at the first"
        findings.append(f"{_count(breaks, 'graph break')}{note}")
    if last.verdict != "ok":
        findings.append(f"{last.name} {_VERDICTS[last.verdict]}")
    return findings


def _with_code(breaks: Sequence[Incident]) -> list[dict[str, Any]]:
    """Return all that is known of graph breaks, with the line of code of each."""
    places = [incident.location.rpartition(":") for incident in breaks]
    codes = [linecache.getline(file, int(line)).strip() if line.isdigit() else "" for file, _, line in places]
    return [asdict(incident) | {"code": code} for incident, code in zip(breaks, codes, strict=True)]


def as_text(diagnosis: Diagnose) -> str:
    """Return the report for people."""
    findings, settings, behind = diagnosis.findings, diagnosis.compile, diagnosis.graph_breaks_behind
    lines = [
        f"compile: {', '.join(f'{key} {settings[key]}' for key in _SHOWN if settings[key] is not None)}",
        *_breaks("graph breaks", diagnosis.graph_breaks),
        *(_breaks("behind them, once they are fixed", behind) if behind else []),
        "",
        "stages",
        *_stages(diagnosis.stages),
        *_smallest_failure(diagnosis.culprit),
        "",
        f"{_count(findings, 'finding')}{':' if findings else ''}",
        *(f"  {finding}" for finding in findings),
    ]
    return "\n".join(lines)


def _stages(stages: Sequence[Stage]) -> list[str]:
    width = max(len(stage.name) for stage in stages)
    return [
        f"  {s.name:<{width}}  {_VERDICTS[s.verdict]}{f': {s.message}' if s.message else ''}" for s in stages
    ]


def _breaks(title: str, breaks: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["", f"{title}: {len(breaks) or 'none'}"]
    for one in breaks:
        lines += [f"  {_short(one['location'])}  {one['code']}", f"      {one['reason']}"]
        lines += [f"      -> {one['remedy']}"] if one["remedy"] else []
    return lines


def _smallest_failure(failure: SmallestFailure | str | None) -> list[str]:
    if isinstance(failure, str | None):
        return ["", failure] if failure else []
    lines = ["", f"the smallest graph that fails, by PyTorch's minifier: from {_short(failure.location)}"]
    lines += [f"  {line}" for line in failure.graph.splitlines() if line.strip()]
    return [*lines, f"  inputs: {', '.join(failure.inputs)}"]


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things) or 'no'} {noun}{'' if len(things) == 1 else 's'}"


def _short(location: str) -> str:
    """Return a location relative to the current folder if it is in it."""
    file, _, line = location.rpartition(":")
    return f"{relative(Path(file))}:{line}"


Config = Mapping[str, Any]

_TRIAL = {
    "mode": "default", "options": None, "fullgraph": False, "optimizer": False, "evaluation": False, "check": True,
    "max_recompiles": None, "max_graph_breaks": None, "on_failure": "fail", "cache_dir": None,
}  # fmt: skip
"""Settings to try a backend: only the task is compiled, its results are checked, and graph breaks are no errors."""


@dataclass(frozen=True)
class Variants:
    """Configs that differ only in `compile`."""

    config: Config  # the config of the user
    eager: Config

    @property
    def backend(self) -> str:
        return self.config["compile"]["backend"]

    def with_backend(self, backend: str) -> Config:
        """Return the given config, checked, with a backend and without settings that turn findings into errors.

        Its own backend keeps its mode and options.
        """
        settings = self.config["compile"]
        kept = ("mode", "options") if backend == self.backend else ()
        trial = {**settings, **_TRIAL, "backend": backend} | {key: settings[key] for key in kept}
        return {**self.config, "compile": trial}


def make_variants(overrides: Sequence[str]) -> Variants:
    """Compose the variants. If the config is not compiled, the given one gets compile=default.

    Raises:
        ConfigError: the config is wrong.
    """
    kept = [o for o in overrides if not o.lstrip("+~").startswith(("compile=", "compile."))]
    chosen = [o for o in overrides if o not in kept]
    if "compile=eager" in chosen:
        raise ConfigError("compile", "compile=eager compiles nothing to diagnose", remedy="leave it out")
    is_chosen = any(o.startswith("compile=") for o in chosen)
    is_eager = "backend" not in compose(kept).compile and not is_chosen
    config = check(compose([*kept, *chosen, *(["compile=default"] if is_eager else [])]))
    return Variants(config, uncompiled(config))


_STAGE_OF_BACKEND = {"eager": "dynamo", "aot_eager": "aot_eager"}
"""The backends that generate no code, in order, and the stage of torch.compile that each tries."""


def main(arguments: Sequence[str]) -> int:
    """Print a diagnosis and return the exit status: 1 if it has findings."""
    _, overrides = Flags("diagnose").split(arguments)
    diagnosis = _diagnose(make_variants(overrides))
    tell(as_text(diagnosis), diagnosis)
    return 1 if diagnosis.findings else 0


def _diagnose(variants: Variants) -> Diagnose:
    check_num_updates(variants.config, 0)
    notice("looking for graph breaks ...")
    traced = variants.with_backend("eager")
    results = (run_isolated(graph_breaks, traced, reads_scalars) for reads_scalars in (False, True))
    # The stages report how a process died.
    breaks, all_breaks = ([] if isinstance(result, ProcessDied) else result for result in results)
    locations = {incident.location for incident in breaks}
    behind = [incident for incident in all_breaks if incident.location not in locations]
    stages, settings = _try_stages(variants), variants.config["compile"]
    failure, findings = _find_smallest_failure(variants, stages), _findings(settings, breaks, stages[-1])
    return Diagnose(findings, settings, _with_code(breaks), _with_code(behind), stages, failure)


def _try_stages(variants: Variants) -> list[Stage]:
    """Try the given config. If it is wrong, try all stages up to the first wrong one."""
    last = _try(_stage_name(variants.backend), variants.with_backend(variants.backend))
    if last.verdict == "ok":
        return [last]
    backends = takewhile(lambda backend: backend != variants.backend, _STAGE_OF_BACKEND)
    stages: list[Stage] = []
    tries = [("eager", variants.eager), *((_stage_name(b), variants.with_backend(b)) for b in backends)]
    for name, config in tries:
        stages.append(_try(name, config))
        if stages[-1].verdict != "ok":
            return stages
    return [*stages, last]


def _try(name: str, config: Config) -> Stage:
    notice(f"trying {name} ...")
    result = run_isolated(try_stage, config, name)
    return Stage(name, "error", str(result)) if isinstance(result, ProcessDied) else result


def _stage_name(backend: str) -> str:
    return _STAGE_OF_BACKEND.get(backend, backend)


def _find_smallest_failure(variants: Variants, stages: Sequence[Stage]) -> SmallestFailure | str | None:
    """Return the smallest graph that fails in the last stage, or why there is none; None without a search."""
    last = stages[-1]
    backend = next((b for b, name in _STAGE_OF_BACKEND.items() if name == last.name), last.name)
    if last.verdict == "ok" or last.name == "eager" or backend == "eager":
        return None  # nothing is wrong, or it goes wrong before there is a graph
    notice("looking for the smallest graph that fails; this may take minutes ...")
    configs = variants.with_backend(backend), variants.with_backend("eager")
    result = run_isolated(find_smallest_failure, *configs, last.verdict)
    return f"PyTorch's minifier died: {result}" if isinstance(result, ProcessDied) else result


class Backends(Answer):
    """The backends of torch.compile.

    Attributes:
        backends: What each lacks; null if it is ready.
    """

    backends: Mapping[str, str | None]


def backends(arguments: Sequence[str]) -> int:
    """Print the backends and return the exit status."""
    Flags("backends").split(arguments)
    obstacles = obstacles_of_backends()
    rows = (f"  {name}  {obstacle or 'ready'}" for name, obstacle in obstacles.items())
    tell(page("\n".join(rows)), Backends(obstacles), emit)
    return 0


def obstacles_of_backends() -> dict[str, str | None]:
    """Return what each backend of torch.compile lacks on this machine; None if it is ready."""
    names = sorted(backend_names(), key=lambda name: (name != "inductor", name))
    return {name: _obstacle(name) for name in names}


def _obstacle(name: str) -> str | None:
    if name == "inductor" and not torch.cuda.is_available():
        has_compiler = shutil.which("g++") or shutil.which("clang++")
        return None if has_compiler else "needs a C++ compiler: apt install g++"
    if name == "inductor":
        return None if find_spec("triton") else "needs triton, which comes with torch for CUDA"
    return missing_package(name)
