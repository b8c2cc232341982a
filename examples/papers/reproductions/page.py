"""docs/reproductions.md, a line for each result, and RESULTS.md, a section for each, written from the results."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.document import place
from benchmarks.figures import rounded
from examples.papers.reproductions import pictures, runner
from examples.papers.reproductions.finding import Finding
from examples.papers.reproductions.table import NOT_RUN, REPRODUCTIONS, Reproduction

LEAGUE = "python -m examples.league run"
TABLE = runner.ROOT / "docs" / "reproductions.md"
PAGE = runner.PROJECT / "RESULTS.md"
HEAD = """\
# Published results, repeated

Claims of papers, each trained again by one command, at the size of two cores:

```text
{command}
```

Each line links to the numbers, the protocol and the picture. A measured number agrees with a claim (`yes`) if its whole
95 % interval is in the range of the claim, and does not (`no`) if none of it is.

Of the {rows} numbers: {verdicts}.
"""
RESULTS_HEAD = """\
# Published results, repeated: protocols and pictures

[The table](../../docs/reproductions.md) has a line for each result. In the tables here, *claim* is the range of numbers
that agree with the paper, and *ours* is the mean with its 95 % interval.

The command trains what has not been trained and writes both pages; given again, it continues. `--miniature` tries it
in seconds. The protocol of each was written before its runs, unless it says otherwise, and is a comment of its
experiment in [conf/experiment](conf/experiment). Ranges that the comment does not give were in the code before the
runs; some sentences of protocols were added later to explain them. What differs from the paper is said. A claim that
does not hold here is shown as it is; it may well hold at the paper's size.

Easy to pass were the two differences on MNIST-1D, the noise scale, the second row of double descent and, because muP
itself divides the rate, the two of muP less without. Seven `no` need not speak against their source: WSD was better
than the cosine three times, where the range tests equality; SGD's best L2 depends on the learning rate, but rises;
two rows of the edge of stability may look too late; and the MLP on Fashion-MNIST was trained for 5 of 25 epochs. That
of AdamW is about the loss, not the accuracy.

The width of a claim's range is ours, and part of the protocol. An interval (Student's t) is of its row alone: of twenty
such intervals, one misses the true mean, so of all rows about {misses} do. With three seeds it is wide. It is not cut:
that of an accuracy may leave 0 to 1, and that of a difference of two -1 to 1. A study's interval holds after each of
its seeds. `not tested` is a row that is not about what the paper measured. Each section names the time and commit of
the last start of its command; runs that were kept from earlier starts may be of earlier commits.
"""

Results = Mapping[str, Mapping[str, Any]]


def results() -> dict[str, dict[str, Any]]:
    """Return the kept result of each reproduction that has one."""
    loaded = {one.name: runner.load(one) for one in REPRODUCTIONS}
    return {name: content for name, content in loaded.items() if content is not None}


def pages() -> dict[Path, str]:
    """Return the text of each page."""
    found = results()
    ran = [one for one in REPRODUCTIONS if one.name in found]
    verdicts = [finding.verdict for one in ran for finding in findings_of(one, found[one.name])]
    rows = len(verdicts)
    head = HEAD.format(command=command("[NAME]"), rows=rows, verdicts=_counted(verdicts))
    sections = (section(one, found[one.name]) for one in ran)
    return {
        TABLE: "\n".join([head, *_table(ran, found), "", *_not_run(found)]),
        PAGE: "\n".join([RESULTS_HEAD.format(misses=round(rows / 20)), *sections]),
    }


def command(name: str) -> str:
    """Return the command that repeats a reproduction."""
    return f"uv run --group dev scripts/reproduce {name}"


def findings_of(reproduction: Reproduction, content: Mapping[str, Any]) -> Sequence[Finding]:
    return reproduction.findings(runner.rows_of(content))


def row(paper: str, finding: Finding) -> str:
    """Return the line of a finding in the table."""
    found = finding.estimate
    assert found.mean is not None
    cells = (
        paper, finding.what, finding.claim, rounded(found.mean), finding.interval, f"{found.num} {finding.over}",
        finding.verdict,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _table(ran: Sequence[Reproduction], found: Results) -> Iterator[str]:
    yield "| paper | result | agrees | processor time | command |"
    yield "| --- | --- | --- | --- | --- |"
    for one in ran:
        agrees = _counted(finding.verdict for finding in findings_of(one, found[one.name]))
        link = f"[{one.title}](../examples/papers/RESULTS.md#{_anchor(one.title)})"
        yield f"| {one.paper} | {link} | {agrees} | {_cost(found[one.name])} | {_name(one)} |"


def _counted(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{num} `{verdict}`" for verdict, num in Counter(verdicts).most_common())


def _rows(one: Reproduction, content: Mapping[str, Any]) -> Iterator[str]:
    yield "| paper | measured | claim | ours | interval | over | agrees |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    yield from (row(finding.paper or one.paper, finding) for finding in findings_of(one, content))


def _name(one: Reproduction) -> str:
    return f"`{one.name}`" if one.sweeps else f"`{LEAGUE}`"


def _cost(content: Mapping[str, Any]) -> str:
    """Return the processor time of a result, such as `3.1 min`."""
    seconds = content["processor_seconds"]
    return "not recorded" if seconds is None else f"{seconds / 60:.1f} min"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]+", "-", title.lower()).strip("-")


def section(one: Reproduction, content: Mapping[str, Any]) -> str:
    """Return the section of a reproduction: its claim, protocol, picture, cost and commands."""
    file = experiment_file(one.experiment_name)
    said = header(file)
    paragraphs = [
        f"## {one.title}",
        _broken(f"**Question**: {said['Question']}"),
        _broken(f"**Claim**: {yaml.safe_load(file.read_text(encoding='utf-8'))['claim']}."),
        _broken(f"**Source**: {said['Source']}"),
        _broken(f"**Protocol**: {said['Protocol']}"),
        _broken(f"**What differs from the paper**: {said['Differs']}"),
        *([_broken(f"**Seen**: {said['Seen']}")] if "Seen" in said else []),
        "\n".join(_rows(one, content)),
        f"![{one.title}: what was measured](../../docs/images/{one.image.format(name=one.name)})",
        _broken(" ".join(_measured(content))),
        f"```text\n{command(one.name) if one.sweeps else f'uv run --group dev {LEAGUE}'}\n```",
    ]
    return "\n\n".join(paragraphs) + "\n"


def _measured(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about the runs of a result: how many, their cost, where, and of which code.

    A recorded commit that is in no branch has the one that replaced it as `rebased`.
    """
    measured, seconds, tuning = (content.get(key) for key in ("measured", "processor_seconds", "num_tuning"))
    before = f" after {tuning} of the tuning" if tuning else ""
    known = "" if seconds is None else f", {seconds / 60:.1f} minutes of processor time"
    yield f"{len(content['runs'])} runs{before}{known}."
    if seconds is None:
        yield "Their losses are recorded, their cost is not."
    assert measured is not None
    dirty = measured["git_dirty"] or (measured["hydrant_commit"] or "").endswith("-dirty")
    rebased = f", rebased since to {measured['rebased'][:10]}" if "rebased" in measured else ""
    yield f"Last started {place({**measured, 'git_dirty': dirty})}{rebased}."
    if dirty:
        yield "The changes were not committed, so the commit alone does not give the code of these runs."


def experiment_file(name: str) -> Path:
    """Return the file of an experiment of this project, of Hydrant, or of another example."""
    projects = [*runner.PROJECT.parent.glob("*/conf"), *runner.ROOT.glob("src/hydrant/extensions/*/conf")]
    folders = [runner.PROJECT / "conf", runner.ROOT / "conf", *projects]
    return next(file for folder in folders if (file := folder / "experiment" / f"{name}.yaml").is_file())


def header(file: Path) -> dict[str, str]:
    """Return what the comment at the top of an experiment says, by its words such as `Protocol`."""
    said: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        if not line.startswith("#"):
            break
        found = re.match(r"# (\w+): +", line)
        word = found[1] if found else list(said)[-1]
        rest = line[found.end() :] if found else line.removeprefix("#").strip()
        said[word] = f"{said.get(word, '')} {rest}".strip()
    return said


def _not_run(found: Results) -> Iterator[str]:
    """Yield a table of what is not run here: the experiments, which have the claims, and the commands."""
    yield from ("## Not run here", "", "These need a GPU, or have no result yet.", "")
    yield from ("| paper | experiment | command |", "| --- | --- | --- |")
    missing = {
        one.experiment_name: (one.paper, command(one.name)) for one in REPRODUCTIONS if one.name not in found
    }
    for name, (paper, words) in {**NOT_RUN, **missing}.items():
        file = experiment_file(name).relative_to(runner.ROOT).as_posix()
        yield f"| {paper} | [{name}](../{file}) | `{words}` |"
    yield ""


def _broken(paragraph: str) -> str:
    words = " ".join(paragraph.split())
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False)


def write() -> None:
    """Write the pages."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


def draw() -> None:
    """Draw the picture of each result."""
    for one in REPRODUCTIONS:
        content = runner.load(one)
        if content is not None and one.sweeps:
            pictures.draw(one.panels(runner.rows_of(content)), pictures.IMAGES / pictures.file_of(one.name))
