"""How far the runs of a sweep are: from their folders alone, as a table that fits, below what is printed."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hydrant import cli
from hydrant.errors import ConfigError
from hydrant.identity import write_records
from hydrant.job import Job
from hydrant.live import drawn, table
from hydrant.locking import exclusive, is_held, is_in_use, shared
from hydrant.runs import Plan, Planned, read_run, write_plan
from hydrant.standing import standings
from hydrant.sweep_table import write_sweep_csv


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of one job in each state, where its folder and that of the job `running` are held."""
    began = time.time() - 100
    states: dict[str, dict[str, Any] | None] = {
        "finished": {"status": "finished", "num_updates": 40, "total_updates": 40, "host": platform.node(),
                     "best": {"metric": "val/accuracy", "value": 0.9, "num_updates": 30}},
        "running": {"status": "running", "num_updates": 10, "total_updates": 40, "host": platform.node()},
        "killed": {"status": "running", "num_updates": 20, "total_updates": 40, "host": platform.node()},
        "running elsewhere": {"status": "running", "num_updates": 0, "total_updates": 40, "host": "node7"},
        "failed": {"status": "failed", "error": {"type": "NonFiniteError", "message": "loss became NaN"}},
        "before": {"status": "failed", "error": {"type": "OSError", "message": "disk full"}},
        "refused": None,
        "waiting": None,
    }  # fmt: skip
    jobs = list[Planned]()
    for state, told in states.items():
        folder = tmp_path / state
        jobs.append(Planned(folder, [f"model={state}", "seed=0"], "no GPU" if state == "refused" else ""))
        if told is None:
            continue
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(told))
        rows = [{"num_updates": n, "train/loss": 3 - n / 10, "perf/updates_per_second": 5.0} for n in (5, 16)]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"num_up')
    os.utime(tmp_path / "before" / "summary.json", (began - 50, began - 50))
    write_plan(tmp_path, Plan(began, jobs))
    return tmp_path


def shown(sweep: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert cli.main(["status", str(sweep), *flags]) == 0
    return capsys.readouterr().out


def test_status_tells_states_from_the_folders_alone(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shared(sweep), exclusive(sweep / "running"):
        [runs] = json.loads(shown(sweep, capsys, "--json")).values()
    found = {run["choices"]["model"]: run for run in runs}
    assert {name: run["state"] for name, run in found.items()} == {name: name for name in found} | {
        "before": "queued", "waiting": "queued"
    }  # fmt: skip
    told = {name: run["told"] for name, run in found.items() if run["told"]}
    assert told == {"failed": "loss became NaN", "before": "failed before", "refused": "no GPU"}
    running = found["running"]
    assert (running["num_updates"], running["loss"], running["seconds_left"]) == (16, 1.4, 24 / 5)
    assert found["killed"]["seconds_left"] is None
    assert (found["finished"]["best"], found["finished"]["best_num_updates"]) == (0.9, 30)


def test_without_its_process_nothing_of_a_sweep_is_queued_or_running(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(sweep, capsys).splitlines()
    assert lines[0].endswith(
        "8 runs: 1 finished, 2 failed, 2 killed, 1 not started, 1 refused, 1 running elsewhere"
    )
    assert lines[3].split() == ["running", "killed", "16/40", "1.400"]


def test_two_sweeps_share_a_folder_and_a_study_has_it_alone(sweep: Path) -> None:
    """When the first one ends, the jobs of the other are still queued."""
    with shared(sweep):
        with shared(sweep):
            pass
        assert is_in_use(sweep)
        assert "queued" in {found.state for found in standings(sweep)}
        with pytest.raises(ConfigError, match="another process"), exclusive(sweep):
            pass
    with exclusive(sweep), pytest.raises(ConfigError, match="another process"), shared(sweep):
        pass
    assert not is_in_use(sweep)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("summary.json", b"[]"),
        ("summary.json", b'{"status": "\xff"}'),
        (".hydra/overrides.yaml", b"- 'seed"),
        (".hydra/overrides.yaml", b"seed: 0"),
    ],
)
def test_a_damaged_file_is_of_its_run_alone(sweep: Path, file: str, text: bytes) -> None:
    path = sweep / "finished" / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    before, *others = standings(sweep)
    assert (before.state, before.choices["model"]) == ("damaged", "finished")
    assert f"{file} is damaged" in before.told
    assert "damaged" not in {found.state for found in others}


def test_lines_that_are_no_rows_are_passed_over(sweep: Path) -> None:
    with (sweep / "killed" / "metrics.jsonl").open("wb") as file:
        file.write(b'{"train/loss": 1}\n[]\n\xff\n{"num_updates": 30, "train/loss": 2}\n')
    (killed,) = (found for found in standings(sweep) if found.state == "killed" and found.run == "killed")
    assert (killed.num_updates, killed.loss) == (30, 2)


def test_a_folder_of_sweeps_is_those_in_it(
    sweep: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is offered in place of a name that is none are sweeps, not whatever lies there."""
    for name in ("lr_study", "2025-01-01/10-00-00"):
        shutil.copytree(sweep, workdir / "multirun" / name, ignore=shutil.ignore_patterns("multirun", "src"))
    (workdir / "src").mkdir()
    assert cli.main(["status", "multirun", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["multirun/2025-01-01/10-00-00", "multirun/lr_study"]
    assert cli.main(["status", "multirum"]) == 2
    told = capsys.readouterr().err
    assert "'multirum' is no folder; did you mean 'multirun'?" in told
    assert "src" not in told
    assert cli.main(["status", "src"]) == 2
    assert "no runs in src" in capsys.readouterr().err


def test_what_is_rewritten_is_whole_whenever_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the disk failed before all was there."""
    job = Job({"name": None}, tmp_path, {}, {"overrides.yaml": "- seed=0\n"}, [], None)
    write_records(job)
    write_sweep_csv(tmp_path, [])
    before = {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_records(dataclasses.replace(job, records={"overrides.yaml": "- seed=1\n"}))
    with pytest.raises(OSError, match="full"):
        write_sweep_csv(tmp_path, [read_run(tmp_path)])
    assert {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()} == before


@pytest.mark.parametrize(("width", "height"), [(40, 24), (60, 7), (80, 5), (200, 4), (20, 3)])
def test_a_table_fits_its_terminal(sweep: Path, width: int, height: int) -> None:
    runs = standings(sweep)
    lines = table("multirun/study", runs, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if len(lines) < len(runs):
        hidden = sum(map(int, re.findall(r"\d+", lines[-1])))
        assert hidden == len(runs) - (len(lines) - 3) or lines[-1].endswith("…")
    assert width < 40 or any("running elsewhere"[: width - 30] in line for line in lines)


class Terminal(io.StringIO):
    """What such a screen looks like: only erasing upwards is understood."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        screen = [""]
        for part in re.split(r"(\r\x1b\[\d+A\x1b\[J|\n)", self.getvalue()):
            if erased := re.match(r"\r\x1b\[(\d+)A", part):
                screen = [*screen[: -1 - int(erased[1])], ""]
            elif part == "\n":
                screen.append("")
            else:
                screen[-1] += part
        return screen


def test_what_is_printed_stands_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, drawings = Terminal(), list[int]()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("hydrant.live._DRAW_SECONDS", 0.01)

    def lines(width: int, height: int) -> Sequence[str]:
        drawings.append(width)
        return [f"drawing {len(drawings)}", "below"]

    def wait_for_drawing() -> None:
        since = len(drawings)
        while len(drawings) < since + 2:
            time.sleep(0.001)

    with drawn(lines):
        wait_for_drawing()
        print("first")
        wait_for_drawing()
        print("second ", end="")
        wait_for_drawing()
        print("ends")
        wait_for_drawing()
        seen = terminal.lines()
        assert seen[:2] == ["first", "second ends"]
        assert seen[3:] in (["below", ""], [])
    assert terminal.lines() == ["first", "second ends", ""]


def test_who_looks_keeps_nobody_out(tmp_path: Path) -> None:
    """Several look without a pause while the folder is taken, again and again."""
    is_over, looked = threading.Event(), list[bool]()

    def look() -> None:
        while not is_over.is_set():
            looked.append(is_held(tmp_path))

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(20):
            with exclusive(tmp_path):
                assert is_held(tmp_path)
        with exclusive(tmp_path), pytest.raises(ConfigError, match="another process"), exclusive(tmp_path):
            pass
    finally:
        is_over.set()
        for looker in lookers:
            looker.join()
    assert not is_held(tmp_path)
    assert not is_held(tmp_path / "none")


def test_status_brings_in_no_torch(sweep: Path) -> None:
    code = f"import sys; from hydrant import cli; cli.main(['status', {str(sweep)!r}]); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "False"
