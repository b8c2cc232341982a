"""Outputs on pages whose commands take too long for a test: the words are those that the code prints today.

The other outputs are compared by tests/project/test_documented_commands.py and tests/commands/compare/test_verdict.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from documentation import blocks, missing_lines
from planted import write_run

from hydrant import cli
from hydrant.sweeps.study.budget import read_budget
from hydrant.sweeps.study.record import Record
from hydrant.sweeps.study.verdict import Results, Rule, Verdict, find_verdict, judge


def verdict_of(results: Results, rule: Rule, why_ended: str = "") -> Verdict:
    ended = ("budget", why_ended) if why_ended else None
    return find_verdict(judge(results, rule), results, rule, {}, ended)  # type: ignore[arg-type]


def test_the_guide_to_studies_shows_the_end_of_one() -> None:
    """Two contenders that are close, and a third that is beaten, when a budget of runs and processor time ends."""
    budget = read_budget("40runs,10cpu-min")
    noise = [0.003, -0.004, 0.001, 0.004, -0.003, -0.001]
    results: Results = {
        "adamw": [0.9778 + n for n in noise],
        "muon": [0.9801 + n + m / 2.5 for n, m in zip(noise, noise[::-1], strict=True)],
        "lion": [0.9676 + n + m / 5 for n, m in zip(noise, noise[::-1], strict=True)],
    }
    why = f"no further round fits into the budget of {budget.describe()}"
    used = {"runs": 39, "updates": 8775, "wall_seconds": 602.0, "cpu_seconds": 75.0}
    verdict = verdict_of(results, Rule("val/accuracy", "max", 0.05, 0.8, None, 3), why)
    protocol = {"metric": "val/accuracy", "mode": "max", "alpha": 0.05}
    content = {"protocol": protocol, "tuning": {"trials": []}, "contenders": []}
    study = SimpleNamespace(
        trials=SimpleNamespace(used=lambda: used),
        protocol=SimpleNamespace(budget=budget),
        fresh=SimpleNamespace(verdict=lambda: verdict),
        to_json=lambda folder, is_running: content,
        continuing=lambda: None,
    )
    printed = "\n".join(Record.closing_lines(cast(Any, study), Path("multirun/best_optimizer")))
    [shown] = [text for text in blocks("docs/guides/study.md", "text") if text.startswith("Undecided: ")]
    assert missing_lines(shown, printed) == [], printed


def test_the_guide_for_agents_shows_the_log(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a study that is decided, and of a run with notes."""
    study, runs = workdir / "multirun" / "first", list[Path]()
    losses: Results = {"adamw": [0.30, 0.31, 0.29, 0.30, 0.32], "muon": [0.25, 0.25, 0.24, 0.255, 0.26]}
    verdict = verdict_of(losses, Rule("val/loss", "min", 0.05, 0.8, None, 2))
    assert verdict.status == "decided"
    record = {
        "version": 1,
        "question": "Which of adamw and muon has the lowest val/loss?",
        "verdict": {"status": verdict.status, "sentence": verdict.sentence, "winner": verdict.winner},
        "protocol": {"metric": "val/loss", "first_fresh_seed": 1},
    }
    for optimizer in ("adamw", "muon"):
        runs.append(write_run(study / optimizer, {"optimizer": optimizer}, 0.9))
    (study / "study.json").write_text(json.dumps(record))
    (study / "sweep.json").write_text('{"began": 1, "jobs": []}')
    words = {"model.hidden": "[512]", "duration": "5ep", "tracker": "local"}
    runs.append(write_run(workdir / "outputs" / "wide", words, 0.9417))
    notes = ["is muon worth it"] * 2 + ["wider, as the small one underfits"]
    for run, text in zip(runs, notes, strict=True):
        config = run / "config.yaml"
        config.write_text(f"{config.read_text()}\nnotes: {text}\n")
    summary = json.loads((runs[-1] / "summary.json").read_text())
    best = {"metric": "val/accuracy", "value": 0.9417, "num_updates": 113}
    (runs[-1] / "summary.json").write_text(json.dumps(summary | {"best": best}))
    assert cli.main(["log"]) == 0
    printed = capsys.readouterr().out
    [shown] = [text for text in blocks("docs/guides/agents.md", "text") if " study multirun/first: " in text]
    assert missing_lines(shown, printed) == [], printed
