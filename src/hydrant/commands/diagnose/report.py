"""The result of a diagnosis, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.commands.bench.results import CellResult

if TYPE_CHECKING:  # these import torch
    from hydrant.commands.diagnose.minify import SmallestFailure
    from hydrant.commands.diagnose.stages import Stage
    from hydrant.training.compile.monitor import Incident


@dataclass(frozen=True)
class Diagnosis:
    """The result of diagnosing torch.compile for a config."""

    config: Mapping[str, Any]
    name: str  # of the given config among the timings
    breaks: Sequence[Incident]
    breaks_behind: Sequence[Incident]  # the breaks that appear when the first ones are fixed
    stages: Sequence[Stage]  # tried stages; only the last one may be wrong
    smallest_failure: SmallestFailure | str | None  # of the last stage, or why there is none
    timings: Sequence[CellResult]  # of each mode and of the given config

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
        for result in self.timings:
            if result.labels["compile"] != self.name:  # another mode than the given one
                continue
            if result.figures().get("recompiles"):
                recompiles = result.repeats[0].compile["recompiles"]
                findings.append(f"{_count(recompiles, 'recompile')} in a few updates")
            if result.status in ("failed", "differs"):
                verdict = _VERDICTS["error" if result.error else "differs"]
                findings.append(f"in training for a few updates, it {verdict}")
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
        "timings": [result.record() for result in diagnosis.timings],
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
        *_timings(diagnosis.timings),
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
        lines += [f"      {incident.reason}", f"      -> {incident.remedy}"]
    return lines


def _smallest_failure(failure: SmallestFailure | str | None) -> list[str]:
    if isinstance(failure, str | None):
        return ["", failure] if failure else []
    lines = ["", f"the smallest graph that fails, by PyTorch's minifier: from {_short(failure.location)}"]
    lines += [f"  {line}" for line in failure.graph.splitlines() if line.strip()]
    lines += [f"  inputs: {', '.join(failure.inputs)}"]
    return lines + ([f"  by PyTorch's bisector: {failure.part}"] if failure.part else [])


def _timings(results: Sequence[CellResult]) -> list[str]:
    if not results:
        return []
    width = max(len(result.labels["compile"]) for result in results)
    head = " ".join(f"{column:>9}" for column in [*_COLUMNS, "ms, range"])
    lines = [f"  {result.labels['compile']:<{width}}  {_timing(result)}" for result in results]
    title = "speed, and seconds of compilation with an empty cache (cold) and a full one (warm)"
    return ["", title, f"  {'compile':<{width}}  {head}", *lines]


_COLUMNS = {
    "ms/update": "update_ms", "x eager": "speedup", "cold s": "compile_seconds_cold",
    "warm s": "compile_seconds_warm", "graphs": "graphs", "breaks": "graph_breaks", "recompiles": "recompiles",
}  # fmt: skip


def _timing(result: CellResult) -> str:
    if result.status != "ok":
        return result.status if result.error is None else f"{result.status}: {result.error}"
    figures = result.figures()
    update_range = f"{figures['update_ms_min']:.2f}-{figures['update_ms_max']:.2f}"
    values = [figures[name] for name in _COLUMNS.values()]
    texts = ["-" if v is None else f"{v:.2f}" if isinstance(v, float) else str(v) for v in values]
    return " ".join(f"{text:>9}" for text in [*texts, update_range])


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things) or 'no'} {noun}{'' if len(things) == 1 else 's'}"


def _short(location: str) -> str:
    """Return a location relative to the current folder if it is in it."""
    file, _, line = location.rpartition(":")
    path = Path(file)
    return f"{path.relative_to(Path.cwd())}:{line}" if path.is_relative_to(Path.cwd()) else location
