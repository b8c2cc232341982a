"""`hydrant diagnose`: find graph breaks, the failing stage, the smallest failing graph, and the speed of each mode."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from hydrant.checks import check_number
from hydrant.commands.bench.results import CellResult, with_baselines
from hydrant.commands.diagnose.report import Diagnosis, as_json, as_text
from hydrant.commands.diagnose.variants import Config, Variants, make_variants
from hydrant.config.command_line import Flags
from hydrant.sweeps.fork_server.call import ProcessDied
from hydrant.terminal.answer import tell
from hydrant.terminal.console import notice

if TYPE_CHECKING:  # these import torch
    from hydrant.commands.diagnose.minify import SmallestFailure
    from hydrant.commands.diagnose.stages import Stage

_REPEATS = 2  # the first compiles cold, the second reuses the code
_WARMUP = 3  # updates that are not timed
_STAGE_OF_BACKEND = {"eager": "dynamo", "aot_eager": "aot_eager"}
"""The backends that generate no code, in order, and the stage of torch.compile that each tries."""


def main(arguments: Sequence[str]) -> int:
    """Print a diagnosis and return the exit status: 1 if it has findings."""
    parser = Flags("diagnose")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--updates", type=int, default=10)
    options, overrides = parser.split(arguments)
    check_number("--updates", options.updates, least=1)
    import torch

    variants = make_variants(overrides, on_cuda=torch.cuda.is_available())
    diagnosis = _diagnose(variants, 0 if options.no_timing else options.updates)
    tell(as_text(diagnosis), as_json(diagnosis))
    return 1 if diagnosis.findings() else 0


def _diagnose(variants: Variants, num_updates: int) -> Diagnosis:
    from hydrant.commands.diagnose.stages import graph_breaks
    from hydrant.commands.isolated import check_num_updates, run_isolated

    check_num_updates(variants.given, num_updates + _WARMUP if num_updates else 0)
    _print_progress("looking for graph breaks")
    traced = variants.with_backend("eager")
    results = (run_isolated(graph_breaks, traced, reads_scalars) for reads_scalars in (False, True))
    # The stages report how a process died.
    breaks, all_breaks = ([] if isinstance(result, ProcessDied) else result for result in results)
    locations = {incident.location for incident in breaks}
    breaks_behind = [incident for incident in all_breaks if incident.location not in locations]
    stages = _try_stages(variants)
    failure = _find_smallest_failure(variants, stages)
    is_correct = stages[-1].verdict == "ok"
    timings = _time_modes(variants, num_updates) if is_correct and num_updates else []
    return Diagnosis(variants.given, variants.given_name, breaks, breaks_behind, stages, failure, timings)


def _try_stages(variants: Variants) -> list[Stage]:
    """Try the given config. If it is wrong, try all stages up to the first wrong one."""
    last = _try(_stage_name(variants.backend), variants.checked)
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
    from hydrant.commands.diagnose.stages import Stage, try_stage
    from hydrant.commands.isolated import run_isolated

    _print_progress(f"trying {name}")
    result = run_isolated(try_stage, config, name)
    return Stage(name, "error", str(result)) if isinstance(result, ProcessDied) else result


def _stage_name(backend: str) -> str:
    return _STAGE_OF_BACKEND.get(backend, backend)


def _find_smallest_failure(variants: Variants, stages: Sequence[Stage]) -> SmallestFailure | str | None:
    """Return the smallest graph that fails in the last stage, or why there is none; None without a search."""
    from hydrant.commands.diagnose.minify import find_smallest_failure
    from hydrant.commands.isolated import run_isolated

    last = stages[-1]
    backend = next((b for b, name in _STAGE_OF_BACKEND.items() if name == last.name), last.name)
    if last.verdict == "ok" or last.name == "eager" or backend == "eager":
        return None  # nothing is wrong, or it goes wrong before there is a graph
    _print_progress("looking for the smallest graph that fails; this may take minutes")
    config = variants.checked if backend == variants.backend else variants.with_backend(backend)
    result = run_isolated(find_smallest_failure, config, variants.with_backend("eager"), last.verdict)
    return f"PyTorch's minifier died: {result}" if isinstance(result, ProcessDied) else result


def _time_modes(variants: Variants, num_updates: int) -> list[CellResult]:
    from hydrant.commands.bench.measure import measure_cells

    configs = variants.timed()
    cells = with_baselines(CellResult({"compile": name}, config) for name, config in configs.items())
    with tempfile.TemporaryDirectory(prefix="hydrant-diagnose-", ignore_cleanup_errors=True) as folder:
        for cell in measure_cells(
            cells, repeats=_REPEATS, num_updates=num_updates, warmup=_WARMUP, cache_dir=Path(folder)
        ):
            _print_progress(f"measured compile={cell.labels['compile']}, {len(cell.repeats)} of {_REPEATS}")
    return cells


def _print_progress(text: str) -> None:
    notice(f"{text} ...")
