"""`hydrant diagnose`: find graph breaks, the failing stage, and the smallest failing graph.

The configs that it compares differ from the given one only in `compile`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydrant.commands.diagnose.stages import (
    SmallestFailure,
    Stage,
    find_smallest_failure,
    graph_breaks,
    try_stage,
)
from hydrant.commands.isolated import check_num_updates, run_isolated
from hydrant.config.check import check
from hydrant.config.command_line import Flags
from hydrant.config.compose import compose, uncompiled
from hydrant.errors import ConfigError
from hydrant.sweeps.fork_server.call import ProcessDied
from hydrant.terminal.console import notice, tell
from hydrant.training.compile.base import Incident


@dataclass(frozen=True)
class Diagnosis:
    """The result of diagnosing torch.compile for a config."""

    config: Mapping[str, Any]
    breaks: Sequence[Incident]
    breaks_behind: Sequence[Incident]  # the breaks that appear when the first ones are fixed
    stages: Sequence[Stage]  # tried stages; only the last one may be wrong
    smallest_failure: SmallestFailure | str | None  # of the last stage, or why there is none

    def findings(self) -> list[str]:
        """Return a line for each problem of the given config."""
        last = self.stages[-1]
        findings: list[str] = []
        settings = self.config["compile"]
        if len(self.breaks) > (settings["max_graph_breaks"] or 0):
            note = "" if settings["fullgraph"] is False else "; compile.fullgraph fails at the first"
            findings.append(f"{_count(self.breaks, 'graph break')}{note}")
        if last.verdict != "ok":
            findings.append(f"{last.name} {_VERDICTS[last.verdict]}")
        return findings


_SHOWN = ("backend", "mode", "scope", "dynamic", "options")  # of the settings
_VERDICTS = {"ok": "ok", "differs": "computes another result than eager", "error": "fails"}


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return everything in plain types."""
    failure = diagnosis.smallest_failure
    return {
        "findings": diagnosis.findings(),
        "compile": diagnosis.config["compile"],
        "graph_breaks": [asdict(b) | {"code": b.code} for b in diagnosis.breaks],
        "graph_breaks_behind": [asdict(b) | {"code": b.code} for b in diagnosis.breaks_behind],
        "stages": [{"name": s.name, "verdict": s.verdict, "message": s.message} for s in diagnosis.stages],
        "culprit": failure if isinstance(failure, str | None) else asdict(failure),
    }


def as_text(diagnosis: Diagnosis) -> str:
    """Return the report for people."""
    findings, settings = diagnosis.findings(), diagnosis.config["compile"]
    behind = "behind them, once they are fixed"
    lines = [
        f"compile: {', '.join(f'{key} {settings[key]}' for key in _SHOWN if settings[key] is not None)}",
        *_breaks("graph breaks", diagnosis.breaks),
        *(_breaks(behind, diagnosis.breaks_behind) if diagnosis.breaks_behind else []),
        "",
        "stages",
        *_stages(diagnosis.stages),
        *_smallest_failure(diagnosis.smallest_failure),
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


def _breaks(title: str, breaks: Sequence[Incident]) -> list[str]:
    lines = ["", f"{title}: {len(breaks) or 'none'}"]
    for incident in breaks:
        lines.append(f"  {_short(incident.location)}  {incident.code}")
        lines += [f"      {incident.reason}", *([f"      -> {incident.remedy}"] if incident.remedy else [])]
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
    path = Path(file)
    return f"{path.relative_to(Path.cwd())}:{line}" if path.is_relative_to(Path.cwd()) else location


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
        """Return the given config with another backend and without settings that turn findings into errors."""
        return {**self.config, "compile": {**self.config["compile"], **_TRIAL, "backend": backend}}

    @property
    def checked(self) -> Config:
        """The given config with `compile.check` on and without settings that turn findings into errors."""
        mode = {key: self.config["compile"][key] for key in ("mode", "options")}
        return {**self.config, "compile": {**self.config["compile"], **_TRIAL, **mode}}


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
    tell(as_text(diagnosis), as_json(diagnosis))
    return 1 if diagnosis.findings() else 0


def _diagnose(variants: Variants) -> Diagnosis:
    check_num_updates(variants.config, 0)
    _print_progress("looking for graph breaks")
    traced = variants.with_backend("eager")
    results = (run_isolated(graph_breaks, traced, reads_scalars) for reads_scalars in (False, True))
    # The stages report how a process died.
    breaks, all_breaks = ([] if isinstance(result, ProcessDied) else result for result in results)
    locations = {incident.location for incident in breaks}
    breaks_behind = [incident for incident in all_breaks if incident.location not in locations]
    stages = _try_stages(variants)
    failure = _find_smallest_failure(variants, stages)
    return Diagnosis(variants.config, breaks, breaks_behind, stages, failure)


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
    _print_progress(f"trying {name}")
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
    _print_progress("looking for the smallest graph that fails; this may take minutes")
    config = variants.checked if backend == variants.backend else variants.with_backend(backend)
    result = run_isolated(find_smallest_failure, config, variants.with_backend("eager"), last.verdict)
    return f"PyTorch's minifier died: {result}" if isinstance(result, ProcessDied) else result


def _print_progress(text: str) -> None:
    notice(f"{text} ...")
