"""The face: what is looked at, in which order, and what follows from it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydrant.config.arguments import Flags
from hydrant.diagnose.report import Diagnosis, as_json, as_text
from hydrant.diagnose.variants import Config, Variants, variants
from hydrant.errors import ConfigError
from hydrant.isolation import ProcessDied

if TYPE_CHECKING:  # these bring in torch
    from hydrant.diagnose.children import Stage
    from hydrant.diagnose.minimal import Culprit
    from hydrant.measuring import Row

T = TypeVar("T")

_REPEATS = 2  # the first compiles cold, the second finds the code
_WARMUP = 3  # updates before those that are timed
_STAGES = {"eager": "dynamo", "aot_eager": "aot_eager"}
"""The backends below the one that writes code, in their order, and what is tried by them."""


def main(arguments: Sequence[str]) -> int:
    """Print what torch.compile makes of a config; 1 where there is something to mend."""
    parser = Flags("diagnose")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--updates", type=int, default=10)
    options, overrides = parser.split(arguments)
    if options.updates < 1:
        raise ConfigError("--updates", f"needs a number from 1 on, not {options.updates}")
    import torch

    found = variants(overrides, on_cuda=torch.cuda.is_available())
    diagnosis = _diagnose(found, 0 if options.no_timing else options.updates)
    print(json.dumps(as_json(diagnosis)) if options.json else as_text(diagnosis))
    return 1 if diagnosis.findings() else 0


def _diagnose(found: Variants, num_updates: int) -> Diagnosis:
    from hydrant.bare import check_horizon
    from hydrant.diagnose.children import graph_breaks

    check_horizon(found.own, num_updates + _WARMUP if num_updates else 0)
    _say("looking for graph breaks")
    traced = found.tried_with("eager")
    breaks, more = (_told(traced, graph_breaks, reads_scalars) for reads_scalars in (False, True))
    here = [] if isinstance(breaks, ProcessDied) else breaks  # how it died is for the stages to tell
    known = {incident.location for incident in here}
    behind = [] if isinstance(more, ProcessDied) else [i for i in more if i.location not in known]
    stages = _climb(found)
    culprit = _culprit(found, stages)
    is_sound = stages[-1].verdict == "ok"
    rows = _measure(found, num_updates) if is_sound and num_updates else []
    return Diagnosis(found.own, found.own_name, here, behind, stages, culprit, rows)


def _climb(found: Variants) -> list[Stage]:
    """What was asked for; where that is not right, also the stages before it, up to the first that is not."""
    own = _try(_name(found.backend), found.checked)
    if own.verdict == "ok":
        return [own]
    before = takewhile(lambda backend: backend != found.backend, _STAGES)
    stages: list[Stage] = []
    for name, config in [("eager", found.eager), *((_name(b), found.tried_with(b)) for b in before)]:
        stages.append(_try(name, config))
        if stages[-1].verdict != "ok":
            return stages
    return [*stages, own]


def _try(name: str, config: Config) -> Stage:
    from hydrant.diagnose.children import Stage, try_stage

    _say(f"trying {name}")
    answer = _told(config, try_stage, name)
    return Stage(name, "error", str(answer)) if isinstance(answer, ProcessDied) else answer


def _name(backend: str) -> str:
    """The stage that a backend is."""
    return _STAGES.get(backend, backend)


def _culprit(found: Variants, stages: Sequence[Stage]) -> Culprit | str | None:
    """The least that fails in the last stage, or why there is none; None where it is not looked for."""
    from hydrant.diagnose.minimal import find_culprit

    failed = stages[-1]
    backend = next((b for b, name in _STAGES.items() if name == failed.name), failed.name)
    if failed.verdict == "ok" or failed.name == "eager" or backend == "eager":
        return None  # nothing is wrong, or it is before any graph is there
    _say("looking for the least that fails; this may take minutes")
    config = found.checked if backend == found.backend else found.tried_with(backend)
    answer = _told(config, find_culprit, found.tried_with("eager"), failed.verdict)
    return f"PyTorch's minifier died on it: {answer}" if isinstance(answer, ProcessDied) else answer


def _told(config: Config, function: Callable[..., T], *more: Any) -> T | ProcessDied:
    """What a process of its own answers; raises the ConfigError that it met."""
    from hydrant.bare import ask

    answer = ask(function, config, *more)
    if isinstance(answer, ConfigError):
        raise answer
    return answer


def _measure(found: Variants, num_updates: int) -> list[Row]:
    from hydrant.measuring import Cell, measure_grid, rows_of

    cells = [Cell({"compile": name}, config) for name, config in found.timed().items()]
    rows = rows_of([(cell.labels, {"compile": "eager"}) for cell in cells])
    row_of = {row.labels["compile"]: row for row in rows}
    with tempfile.TemporaryDirectory(prefix="hydrant-diagnose-", ignore_cleanup_errors=True) as folder:
        grid = measure_grid(
            cells, repeats=_REPEATS, num_updates=num_updates, warmup=_WARMUP, cache_dir=Path(folder)
        )
        for cell, measurement in grid:
            row = row_of[cell.labels["compile"]]
            row.repeats.append(measurement)
            _say(f"measured compile={cell.labels['compile']}, {len(row.repeats)} of {_REPEATS}")
    return rows


def _say(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)
