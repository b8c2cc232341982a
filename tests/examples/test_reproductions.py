"""Published results, repeated: the page is written from the kept results, and each reproduction runs in miniature."""

import contextlib
import doctest
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from example_projects import use_example
from repository import ROOT

from examples.papers.reproductions import __main__, finding, measures, page, pictures, runner, widths
from examples.papers.reproductions.table import NOT_RUN, REPRODUCTIONS, Reproduction
from hydrant import cli
from hydrant.sweeps.plan import usable_plan

BY_NAME = {one.name: one for one in REPRODUCTIONS}
QUICK = "double_descent"
"""The miniature that the default tests run; the others are slow."""


def test_the_page_is_generated_from_the_results() -> None:
    assert {file: file.read_text(encoding="utf-8") for file in page.pages()} == page.pages()
    assert {file.stem for file in runner.RESULTS.iterdir()} <= BY_NAME.keys()


@pytest.mark.parametrize(
    ("git_dirty", "hydrant_commit"), [(False, "5af3-dirty"), (True, "5af3"), (True, None)]
)
def test_a_section_names_changes_to_the_project_and_to_hydrant_and_a_rebased_commit(
    git_dirty: bool, hydrant_commit: str | None
) -> None:
    content = page.results()["double_descent"]
    code = {
        "git_commit": "5af3",
        "git_dirty": git_dirty,
        "hydrant_commit": hydrant_commit,
        "rebased": "1" * 40,
    }
    text = page.section(BY_NAME["double_descent"], {**content, "measured": {**content["measured"], **code}})
    assert "at 5af3 with changes, rebased since to 1111111111. The changes were not" in " ".join(text.split())


@pytest.mark.parametrize("name", page.results())
def test_a_result_has_all_runs_of_its_sweeps_and_a_small_picture(name: str) -> None:
    content = page.results()[name]
    one = BY_NAME[name]
    assert not one.sweeps or {row["part"] for row in runner.rows_of(content)} == set(one.sweeps)
    assert content["measured"]["packages"]
    assert (ROOT / "docs" / "images" / one.image.format(name=name)).stat().st_size < 150_000


@pytest.mark.parametrize("one", REPRODUCTIONS, ids=lambda one: one.name)
def test_the_protocol_is_in_the_experiment(one: Reproduction) -> None:
    said = page.header(page.experiment_file(one.experiment_name))
    assert {"Question", "Run", "Takes", "Source", "Protocol", "Differs"} <= said.keys()


def test_what_needs_a_gpu_has_its_row_with_the_command() -> None:
    rows = [line for line in page.pages()[page.TABLE].splitlines() if line.startswith("|")]
    for _, command in NOT_RUN.values():
        assert any(line.endswith(f"`{command}` |") for line in rows)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps start in this process, which has imported torch."""

    use_example("papers", monkeypatch)

    def call(words: Sequence[str], folder: Path) -> tuple[int, Mapping[str, Any]]:
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            status = cli.main(["train", *words, "--json"])
        return status, json.loads(printed.getvalue() or "{}")

    monkeypatch.setattr(runner, "call", call)


@pytest.mark.slow
@pytest.mark.parametrize("one", [pytest.param(r, id=r.name) for r in REPRODUCTIONS if r.sweeps])
def test_a_miniature_runs_and_continues(
    one: Reproduction, tmp_path: Path, in_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command again trains nothing, finds the same, and changes no kept result."""
    kept, text = page.results(), page.PAGE.read_bytes()
    tables = list[list[str]]()
    for _ in range(2 if one.name == QUICK else 1):
        __main__.main([one.name, "--miniature", "--folder", str(tmp_path)])
        tables.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("|")])
    content = runner.read(one, tmp_path, miniature=True)
    findings = one.findings(runner.rows_of(content))
    plans = [usable_plan(tmp_path / "multirun" / name)[0] for name, _ in runner.sweeps(one, miniature=True)]
    assert content["processor_seconds"] == round(sum(plan.processor_seconds for plan in plans)) > 0
    assert all(table == [page.row(f.paper or one.paper, f) for f in findings] for table in tables)
    assert [n for n in one.directions if not findings[n].agrees] == []
    pictures.draw(one.panels(runner.rows_of(content)), tmp_path / "picture.png")
    assert (page.results(), page.PAGE.read_bytes()) == (kept, text)


def test_a_damaged_result_is_named_with_what_writes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    (tmp_path / "mup.json").write_text('{"runs": [')
    with pytest.raises(SystemExit, match=r"mup\.json is damaged .*; scripts/reproduce mup writes it again"):
        page.pages()


@pytest.mark.parametrize("module", [finding, measures, widths])
def test_the_examples_in_docstrings_are_correct(module: ModuleType) -> None:
    assert not doctest.testmod(module).failed
