"""The package of docs/reference/extensions.md: a command, a listener, an option and a launcher that Hydrant lacks."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import blocks, commands, write_files
from installed import uv
from processes import printed, wait_for_row, wait_until_gone
from repository import ROOT

PAGE = "docs/reference/extensions.md"


def test_its_files_import_only_the_doors() -> None:
    rows = re.findall(r"^\| (`hydrant\..*)\| (.*) \|$", (ROOT / PAGE).read_text(), re.MULTILINE)
    doors = {
        (module, name)
        for modules, names in rows
        for module in re.findall(r"`(hydrant[\w.]+)`", modules)
        for name in re.findall(r"`(\w+)`", names)
    }
    nodes = [node for block in blocks(PAGE, "python") for node in ast.walk(ast.parse(block))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    used = {(str(node.module), alias.name) for node in imports for alias in node.names}
    assert {door for door in used if door[0].startswith("hydrant")} <= doors
    assert len(used & doors) == 6
    assert not any("hydrant" in ast.unparse(node) for node in nodes if isinstance(node, ast.Import))


def call(command: str, *further: str) -> list[str]:
    """Return how a command of the page is called here."""
    program, *words = command.split()
    programs = {"python": [str(ROOT / words[0]), *words[1:]], "hydrant": ["-m", "hydrant", *words]}
    return [sys.executable, *programs[program], *further]


@pytest.mark.usefixtures("forks")
def test_it_trains_sweeps_is_cancelled_and_counts(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sweep ends as an undisturbed one after the sweep was killed and its unit was cancelled."""
    write_files(PAGE, source := workdir / "source")
    (source / "annex" / "tally.txt").write_text(text := blocks(PAGE, "text")[0])
    uv("build", "--quiet", "--wheel", "--out-dir", str(workdir), str(source))
    place = ("--python", sys.executable, "--target", str(workdir / "installed"))
    uv("pip", "install", "--quiet", "--no-deps", *place, *map(str, workdir.glob("*.whl")))
    monkeypatch.setenv("PYTHONPATH", str(workdir / "installed"))

    _, _, tally, sweep, stop = commands(PAGE)
    words = ("duration=1500", "log_every=20", "save_every=1500", "eval_every=1500", "tracker=local")
    sweep_call = call(sweep, *words, "hydra.sweep.subdir=${hydra:job.num}")
    with subprocess.Popen(sweep_call, stdout=subprocess.DEVNULL) as process:
        wait_for_row(workdir / "multirun" / "pair" / "0", 20, process)
        unit = int((workdir / "multirun" / "pair" / ".detached_pid").read_text())
        os.killpg(unit, signal.SIGSTOP)  # so that it is not finished before the command has started
        process.kill()
    assert f"multirun/pair: cancelled process {unit};" in printed(*call(stop))
    os.killpg(unit, signal.SIGCONT)
    wait_until_gone([unit], seconds=60)
    assert json.loads(printed(*call(tally)))["statuses"] == {"preempted": 1}
    printed(*sweep_call)
    answer = {"version": 1, "command": "tally", "statuses": {"finished": 2}}
    assert json.loads(printed(*call(tally))) == answer
    assert (workdir / "diary.txt").read_text() == "1500\n" * 2
    assert printed(*call(tally, "--help")).startswith(text.splitlines()[0])
    assert "  tally  " in printed(*call("hydrant --help"))

    monkeypatch.delenv("PYTHONPATH")  # a run is evaluated without the package of its optimizer
    unknown = subprocess.run(call(stop), capture_output=True, text=True, check=True)
    assert "'annex.launcher.Detached' is not installed here" in unknown.stderr
    summary = json.loads((workdir / "multirun" / "pair" / "0" / "summary.json").read_text())
    evaluate = "hydrant evaluate multirun/pair/0 eval_batch_size=512 --json"
    assert json.loads(printed(*call(evaluate)))["val/accuracy"] == summary["metrics"]["val/accuracy"]
