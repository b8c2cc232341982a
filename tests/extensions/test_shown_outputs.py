"""Outputs on pages whose commands take too long for a test: what today's code prints of the results of these commands.

The other outputs are compared by test_documented_commands.py and tests/extensions/compare/test_verdict.py.
"""

import html
import re
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from documentation import blocks
from msgspec.structs import asdict
from planted import write_run, write_study_record
from repository import ROOT

from hydrant import cli
from hydrant.extensions.study.report import closing_lines
from hydrant.extensions.study.trials import read_budget
from hydrant.extensions.study.verdict import Results, Rule, Verdict, estimate, find_verdict, judge, spread


def verdict_of(results: Results, rule: Rule, why_ended: str = "") -> Verdict:
    ended = ("budget", why_ended) if why_ended else None
    return find_verdict(judge(results, rule), results, rule, {}, ended)  # type: ignore[arg-type]


CORRECT: Mapping[str, Sequence[int]] = {
    "adamw": [353, 351, 353, 353, 350, 352],
    "muon": [354, 352, 354, 354, 351, 352],
    "lion": [349, 346, 348, 350, 349, 348],
}
"""Of 360 digits, how many each contender of the study on the page classifies correctly, by fresh seed."""


def test_the_guide_to_studies_shows_the_end_of_one() -> None:
    """The answer to these results, as today's code writes it. Only seconds may differ."""
    budget, alpha = read_budget("40runs,10cpu-min"), 0.05
    results: Results = {name: [n / 360 for n in numbers] for name, numbers in CORRECT.items()}
    rule = Rule("val/accuracy", "max", alpha, 0.8, None, len(results))
    why = f"no further round fits into the budget of {budget.describe()}"
    used = {"runs": 39, "updates": 8775, "wall_seconds": 602.0, "cpu_seconds": 75.0}
    verdict, beaten = verdict_of(results, rule, why), judge(results, rule).beaten
    best = {"adamw": "0.01", "muon": "0.01", "lion": "0.003"}
    rows = [
        {
            "name": name, "best": {"optimizer.lr": best[name]}, "std": spread(values), "num_seeds": len(values),
            **asdict(estimate(values, alpha, values)), "state": "active", "at_end": [],
            **dict(zip(("beaten_by", "beaten_after"), beaten.get(name, (None, None)), strict=True)),
        }
        for name, values in results.items()
    ]  # fmt: skip
    protocol = {"metric": "val/accuracy", "mode": "max", "alpha": alpha, "budget": budget.limits}
    content = {"protocol": protocol, "tuning": {"trials": ["some"]}, "contenders": rows, "cost": used,
               "verdict": asdict(verdict), "continue": None}  # fmt: skip
    printed = closing_lines(content, Path("multirun/best_optimizer"))
    page = "docs/guides/study.md"
    [shown] = [text for text in blocks(page, "text") if text.startswith("Undecided: ")]
    assert without_seconds(shown.splitlines()) == without_seconds(printed[-2:])


def without_seconds(lines: Sequence[str]) -> list[str]:
    """Return lines without what a study used of the clock and of the processors."""
    return [re.sub(r"[\d,]+ s, [\d,]+ processor seconds of", "of", line) for line in lines]


LOSSES: Results = {
    "adamw": [0.1642502397298813, 0.17974677681922913, 0.16845308244228363, 0.22377440333366394, 0.17987865209579468],
    "muon": [0.1180407702922821, 0.11519692838191986, 0.12985602021217346, 0.152082622051239, 0.149503692984581],
}  # fmt: skip
"""The results of the study on the page for agents, by fresh seed."""


def test_the_guide_for_agents_shows_the_log(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a study that is decided, with notes. Only dates may differ."""
    study = workdir / "multirun" / "first"
    runs = [write_run(study / f"tuning-{n}", {"optimizer.lr": n, "seed": 0}, 0.9) for n in range(14)]
    for name, losses in LOSSES.items():
        for seed, loss in enumerate(losses, 1):
            accuracy = 1 - (loss or 0.0)  # the loss of a planted run is 1 - its accuracy
            runs.append(write_run(study / f"{name}-{seed}", {"optimizer": name, "seed": seed}, accuracy))
    write_study_record(study, [*LOSSES], metric="val/loss", mode="min")
    (study / "sweep.json").write_text('{"began": 1, "jobs": []}')
    for run in runs:
        config = run / "config.yaml"
        config.write_text(f"{config.read_text()}\nnotes: is muon worth it\n")
    assert cli.main(["log"]) == 0
    printed = capsys.readouterr().out
    [shown] = [text for text in blocks("docs/guides/agents.md", "text") if " study multirun/first: " in text]
    assert [line[16:] for line in shown.splitlines()] == [line[16:] for line in printed.splitlines()]


def test_the_gallery_has_the_numbers_of_its_pictures() -> None:
    page = (ROOT / "docs" / "start" / "gallery.md").read_text()
    [accuracies] = re.findall(
        r"`val/accuracy` (\S+) after 60 epochs of the digits, and (\S+) at its best", page
    )
    [each] = re.findall(
        r"AdamW with a learning rate of 0.01 reaches ([\d.]+), SGD with 0.1 ([\d.]+)\.\s", page
    )
    finished = r"finished: \d+ updates, val/accuracy ([\d.]+), best ([\d.]+)"
    assert rounded(re.findall(finished, lines_of("run.svg"))) == [*accuracies]
    best = r"^(?:adamw +0\.01|sgd +0\.1) .* ([\d.]+) at \d+$"
    assert rounded([re.findall(best, lines_of("sweep.svg"), re.MULTILINE)]) == [*each]


def test_the_killed_runs_are_as_many_as_the_page_says() -> None:
    """Of each of the runs that the script makes. Slow tests run it with fewer kills."""
    script = runpy.run_path(str(ROOT / "scripts" / "kill_runs"))
    text = (ROOT / "docs" / "internals" / "reliability.md").read_text()
    assert re.findall(r"after 100 kills of (\d+) runs", text) == [str(len(script["GRID"]))]


def lines_of(picture: str) -> str:
    """Return the text of a picture of the terminal."""
    svg = html.unescape((ROOT / "docs" / "images" / picture).read_text()).replace("\xa0", " ")
    lines = dict[str, str]()
    for number, text in re.findall(r"<text[^>]*-line-(\d+)\)\">([^<]*)</text>", svg):
        lines[number] = lines.get(number, "") + text
    return "\n".join(lines.values())


def rounded(found: Sequence[Sequence[str]]) -> list[str]:
    [values] = found
    return [f"{float(value):.3f}" for value in values]
