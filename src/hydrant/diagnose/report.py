"""What a diagnosis found, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these bring in torch
    from hydrant.compilation import Incident
    from hydrant.diagnose.children import Stage
    from hydrant.diagnose.minimal import Culprit
    from hydrant.measuring import Measurement


@dataclass(frozen=True)
class Timing:
    """How fast a mode trains, and what it takes to compile."""

    compile: str
    update_seconds: float | None = None  # median
    speedup: float | None = None  # over eager
    cold_seconds: float | None = None  # of compiling, with an empty cache
    warm_seconds: float | None = None  # with what that has left there
    graphs: int = 0
    graph_breaks: int = 0
    recompiles: int = 0
    error: str | None = None
    is_refused: bool = False  # the error says that this mode is not for this config


@dataclass(frozen=True)
class Diagnosis:
    """What torch.compile makes of a config."""

    config: Mapping[str, Any]
    breaks: Sequence[Incident]
    behind: Sequence[Incident]  # breaks that show once those are mended
    stages: Sequence[Stage]  # tried, up to the first that is not right
    culprit: Culprit | str | None  # the least that fails there, or why there is none
    timings: Sequence[Timing]

    def findings(self) -> list[str]:
        """What there is to mend, a line each."""
        last = self.stages[-1]
        found = [f"{_count(self.breaks, 'graph break')}; fullgraph fails at the first"] if self.breaks else []
        if last.verdict != "ok":
            found.append(f"{last.name} {_VERDICTS[last.verdict]}")
        for timing in self.timings:
            if timing.recompiles:
                found.append(f"compile={timing.compile} compiles again: {timing.recompiles}x")
            if timing.error is not None and not timing.is_refused:
                found.append(f"compile={timing.compile} fails: {timing.error}")
        return found


_VERDICTS = {"ok": "ok", "differs": "computes something else than eager", "error": "fails"}


def timing(name: str, repeats: Sequence[Measurement], eager: Sequence[Measurement]) -> Timing:
    """Sum up the repeats of a mode, the first of which found an empty cache."""
    failed = next((r for r in repeats if r.error is not None), None)
    if failed is not None:
        return Timing(name, error=failed.error, is_refused=failed.is_refused)
    cold, warm = repeats[0].compile, repeats[-1].compile
    seconds, reference = _typical(repeats), _typical(eager)
    is_compiled = bool(cold["graphs"])
    return Timing(
        name,
        update_seconds=seconds,
        speedup=reference / seconds if reference is not None and seconds is not None else None,
        cold_seconds=cold["seconds"] if is_compiled else None,
        warm_seconds=warm["seconds"] if is_compiled else None,
        graphs=cold["graphs"],
        graph_breaks=len(cold["graph_breaks"]),
        recompiles=len(cold["recompiles"]),
    )


def _typical(repeats: Sequence[Measurement]) -> float | None:
    seconds = [s for repeat in repeats for s in repeat.update_seconds]
    return median(seconds) if seconds else None


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Everything, in plain types."""
    return {
        "findings": diagnosis.findings(),
        "compile": diagnosis.config["compile"],
        "graph_breaks": [asdict(b) | {"code": b.code} for b in diagnosis.breaks],
        "graph_breaks_behind": [asdict(b) | {"code": b.code} for b in diagnosis.behind],
        "stages": [asdict(stage) for stage in diagnosis.stages],
        "culprit": diagnosis.culprit
        if isinstance(diagnosis.culprit, str | None)
        else asdict(diagnosis.culprit),
        "timings": [asdict(timing) for timing in diagnosis.timings],
    }


def as_text(diagnosis: Diagnosis) -> str:
    """The report that is printed."""
    findings = diagnosis.findings()
    lines = [
        *_subject(diagnosis.config["compile"]),
        *_breaks("graph breaks", diagnosis.breaks),
        *(_breaks("behind them, once they are mended", diagnosis.behind) if diagnosis.behind else []),
        "",
        "stages",
        *_stages(diagnosis.stages),
        *_culprit(diagnosis.culprit),
        *_timings(diagnosis.timings),
        "",
        f"{_count(findings, 'finding')}{':' if findings else ''}",
        *(f"  {finding}" for finding in findings),
    ]
    return "\n".join(lines)


def _subject(settings: Mapping[str, Any]) -> list[str]:
    shown = ("backend", "mode", "scope", "dynamic", "options")
    return ["compile: " + ", ".join(f"{key} {settings[key]}" for key in shown if settings[key] is not None)]


def _stages(stages: Sequence[Stage]) -> list[str]:
    width = max(len(stage.name) for stage in stages)
    return [f"  {s.name:<{width}}  {_VERDICTS[s.verdict]}{f': {s.told}' if s.told else ''}" for s in stages]


def _breaks(title: str, breaks: Sequence[Incident]) -> list[str]:
    lines = ["", f"{title}: {len(breaks) or 'none'}"]
    for incident in breaks:
        lines += [f"  {_short(incident.location)}  {incident.code}", f"      {incident.reason}"]
        lines += [f"      -> {incident.remedy}"]
    return lines


def _culprit(culprit: Culprit | str | None) -> list[str]:
    if culprit is None or isinstance(culprit, str):
        return [] if culprit is None else ["", culprit]
    lines = ["", f"the least that fails, by PyTorch's minifier: from {_short(culprit.location)}"]
    lines += [f"  {line}" for line in culprit.graph.splitlines() if line.strip()]
    lines += [f"  given {', '.join(culprit.inputs)}"]
    return lines + ([f"  by PyTorch's bisector: {culprit.part}"] if culprit.part else [])


def _timings(timings: Sequence[Timing]) -> list[str]:
    if not timings:
        return []
    width = max(len(timing.compile) for timing in timings)
    columns = ("ms/update", "x eager", "cold s", "warm s", "graphs", "breaks", "recompiles")
    head = " ".join(f"{column:>9}" for column in columns)
    rows = [f"  {timing.compile:<{width}}  {_row(timing)}" for timing in timings]
    title = "speed, and seconds of compiling, first with an empty cache (cold)"
    return ["", title, f"  {'compile':<{width}}  {head}", *rows]


def _row(timing: Timing) -> str:
    if timing.error is not None:
        return f"{'not for this config' if timing.is_refused else 'fails'}: {timing.error}"
    milliseconds = None if timing.update_seconds is None else 1000 * timing.update_seconds
    times = (milliseconds, timing.speedup, timing.cold_seconds, timing.warm_seconds)
    counts = (timing.graphs, timing.graph_breaks, timing.recompiles)
    shown = [*("-" if value is None else f"{value:.2f}" for value in times), *map(str, counts)]
    return " ".join(f"{figure:>9}" for figure in shown)


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things) or 'no'} {noun}{'' if len(things) == 1 else 's'}"


def _short(location: str) -> str:
    """A location as it is written from the current folder."""
    file, _, line = location.rpartition(":")
    path = Path(file)
    return f"{path.relative_to(Path.cwd())}:{line}" if path.is_relative_to(Path.cwd()) else location
