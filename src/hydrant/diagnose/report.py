"""What a diagnosis found, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these bring in torch
    from hydrant.compilation import Incident
    from hydrant.diagnose.children import Stage
    from hydrant.diagnose.minimal import Culprit
    from hydrant.measuring import Row


@dataclass(frozen=True)
class Diagnosis:
    """What torch.compile makes of a config."""

    config: Mapping[str, Any]
    name: str  # of its row
    breaks: Sequence[Incident]
    behind: Sequence[Incident]  # breaks that show once those are mended
    stages: Sequence[Stage]  # tried, up to the first that is not right
    culprit: Culprit | str | None  # the least that fails there, or why there is none
    rows: Sequence[Row]  # of each mode, and of the config as it was given

    def findings(self) -> list[str]:
        """What there is to mend, a line each."""
        last = self.stages[-1]
        found: list[str] = []
        settings = self.config["compile"]
        if len(self.breaks) > (settings["max_graph_breaks"] or 0):
            whole = "" if settings["fullgraph"] is False else "; fullgraph fails at the first"
            found.append(f"{_count(self.breaks, 'graph break')}{whole}")
        if last.verdict != "ok":
            found.append(f"{last.name} {_VERDICTS[last.verdict]}")
        for row in self.rows:
            if row.labels["compile"] != self.name:  # a mode that was not asked for
                continue
            if row.figures().get("recompiles"):
                found.append(f"{_count(row.repeats[0].compile['recompiles'], 'recompile')} in a few updates")
            if row.status in ("failed", "differs"):
                found.append(
                    f"trained for a few updates, it {_VERDICTS['error' if row.error else 'differs']}"
                )
        return found


_VERDICTS = {"ok": "ok", "differs": "computes something else than eager", "error": "fails"}


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
        "timings": [row.record() for row in diagnosis.rows],
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
        *_timings(diagnosis.rows),
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


def _timings(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    width = max(len(row.labels["compile"]) for row in rows)
    head = " ".join(f"{column:>9}" for column in [*_COLUMNS, "ms, range"])
    lines = [f"  {row.labels['compile']:<{width}}  {_timed(row)}" for row in rows]
    title = "speed, and seconds of compiling, first with an empty cache (cold)"
    return ["", title, f"  {'compile':<{width}}  {head}", *lines]


_COLUMNS = {
    "ms/update": "update_ms", "x eager": "speedup", "cold s": "compile_seconds_cold",
    "warm s": "compile_seconds_warm", "graphs": "graphs", "breaks": "graph_breaks", "recompiles": "recompiles",
}  # fmt: skip


def _timed(row: Row) -> str:
    if row.status != "ok":
        return row.status if row.error is None else f"{row.status}: {row.error}"
    figures = row.figures()
    spread = f"{figures['update_ms_min']:.2f}-{figures['update_ms_max']:.2f}"
    own = [figures[name] for name in _COLUMNS.values()]
    shown = ["-" if f is None else f"{f:.2f}" if isinstance(f, float) else str(f) for f in own]
    return " ".join(f"{figure:>9}" for figure in [*shown, spread])


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things) or 'no'} {noun}{'' if len(things) == 1 else 's'}"


def _short(location: str) -> str:
    """A location as it is written from the current folder."""
    file, _, line = location.rpartition(":")
    path = Path(file)
    return f"{path.relative_to(Path.cwd())}:{line}" if path.is_relative_to(Path.cwd()) else location
