"""The face: what is looked at, in which order, and what follows from it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydrant.config.arguments import Flags
from hydrant.diagnose.report import Diagnosis, Timing, as_json, as_text, timing
from hydrant.diagnose.variants import Config, Variants, variants
from hydrant.errors import ConfigError

if TYPE_CHECKING:  # these bring in torch
    from hydrant.diagnose.children import Stage
    from hydrant.diagnose.minimal import Culprit
    from hydrant.measuring import Measurement

_REPEATS = 2  # the first compiles cold, the second finds the code
_STAGES = {"eager": "dynamo", "aot_eager": "aot_eager"}
"""The backends below the one that writes code, and what is tried by them."""


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
    from hydrant.diagnose.children import ask, graph_breaks
    from hydrant.isolation import ProcessDied

    _say("looking for graph breaks")
    traced = found.tried_with("eager")
    breaks, more = (ask(graph_breaks, traced, reads_scalars) for reads_scalars in (False, True))
    # A line that is left in one frame is met again in the next. How a process died is for the stages to tell.
    here = {} if isinstance(breaks, ProcessDied) else {i.location: i for i in breaks}
    behind = {} if isinstance(more, ProcessDied) else {i.location: i for i in more if i.location not in here}
    stages = _climb(found)
    culprit = _culprit(found, stages)
    is_sound = stages[-1].verdict == "ok"
    timings = _measure(found, num_updates) if is_sound and num_updates else []
    return Diagnosis(found.own, list(here.values()), list(behind.values()), stages, culprit, timings)


def _climb(found: Variants) -> list[Stage]:
    """What was asked for; where that is not right, also the stages before it, up to the first that is not."""
    own = _try(found.backend, found.checked)
    if own.verdict == "ok":
        return [own]
    ladder = [
        ("eager", found.eager),
        *((_STAGES[b], found.tried_with(b)) for b in _STAGES if b != found.backend),
    ]
    stages: list[Stage] = []
    for name, config in ladder:
        stages.append(_try(name, config))
        if stages[-1].verdict != "ok":
            return stages
    return [*stages, own]


def _try(name: str, config: Config) -> Stage:
    from hydrant.diagnose.children import Stage, ask, try_stage
    from hydrant.isolation import ProcessDied

    _say(f"trying {name}")
    answer = ask(try_stage, config, name)
    return Stage(name, "error", str(answer)) if isinstance(answer, ProcessDied) else answer


def _culprit(found: Variants, stages: Sequence[Stage]) -> Culprit | str | None:
    """The least that fails in the last stage, or why there is none; None where it is not looked for."""
    from hydrant.diagnose.children import ask
    from hydrant.diagnose.minimal import find_culprit
    from hydrant.isolation import ProcessDied

    failed = stages[-1]
    backend = next((b for b, name in _STAGES.items() if name == failed.name), failed.name)
    if failed.verdict == "ok" or failed.name == "eager" or backend == "eager":
        return None  # nothing is wrong, or it is before any graph is there
    _say("looking for the least that fails")
    config = found.checked if backend == found.backend else found.tried_with(backend)
    answer = ask(find_culprit, config, found.tried_with("eager"), failed.verdict)
    return f"PyTorch's minifier died on it: {answer}" if isinstance(answer, ProcessDied) else answer


def _measure(found: Variants, num_updates: int) -> list[Timing]:
    from hydrant.measuring import Cell, measure_grid

    cells = [Cell({"compile": name}, config) for name, config in found.timed().items()]
    measured: dict[str, list[Measurement]] = {cell.labels["compile"]: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        grid = measure_grid(
            cells, repeats=_REPEATS, num_updates=num_updates, warmup=3, cache_dir=Path(folder)
        )
        for cell, measurement in grid:
            measured[cell.labels["compile"]].append(measurement)
            _say(f"measured compile={cell.labels['compile']}")
    return [timing(name, repeats, measured["eager"]) for name, repeats in measured.items()]


def _say(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)
