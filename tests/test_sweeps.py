"""Sweeps that are started again: what is refused, skipped, run; the ready grids; what is shown meanwhile."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import slurm as one_node
import yaml
from checks import ROOT, command, run_command, summary
from killing import kill
from omegaconf import OmegaConf

from hydrant import cli
from hydrant.config import check, combinations, compose
from hydrant.errors import ConfigError
from hydrant.live import drawn, table
from hydrant.locking import exclusive, is_held, marked
from hydrant.runs import Plan, Planned, write_plan
from hydrant.standing import standings

SHORT = ("tracker=local", "model.hidden=[16]", "duration=4", "log_every=1", "eval_every=2", "save_every=2")
LONG = (
    "tracker=local",
    "model.hidden=[16]",
    "duration=20000",
    "log_every=20",
    "eval_every=4000",
    "save_every=4000",
)
GRIDS = sorted(
    p.stem for p in (ROOT / "conf" / "sweep").glob("*.yaml") if "/hydra/sweeper" not in p.read_text()
)


def test_a_changed_config_is_refused_before_anything_starts(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two jobs, the second one's folder holds a run of a shorter duration."""
    other = workdir / "multirun" / "study" / "optimizer-sgd_seed-1"
    other.mkdir(parents=True)
    config = check(compose(["optimizer=sgd", "seed=1", "duration=50"]))
    (other / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    words = ("sweep=seeds", "seed=0,1", "optimizer=sgd", "name=study", "hydra/launcher=local")
    assert cli.main(["train", "-m", *words]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "optimizer-sgd_seed-1 holds a run of another config: duration (50 there, '60ep' here)" in told
    assert told.endswith("[job: seed=1 optimizer=sgd name=study; 1 of 2 cannot run]")
    assert [path.name for path in other.parent.iterdir()] == [other.name]


@pytest.mark.parametrize("grid", GRIDS)
def test_every_job_of_a_ready_grid_can_be(grid: str) -> None:
    text = (ROOT / "conf" / "sweep" / f"{grid}.yaml").read_text()
    package, question = text.splitlines()[:2]
    assert package == "# @package _global_"
    assert re.fullmatch(rf"# .*[?.] {{4}}python train\.py --multirun sweep={grid}", question)
    params = yaml.safe_load(text)["hydra"]["sweeper"]["params"]
    jobs = combinations([f"{key}={values}" for key, values in params.items()])
    configs = [check(compose(job)) for job in jobs]
    assert len({json.dumps(config) for config in configs}) == len(jobs) > 1


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
def test_a_ready_grid_runs(grid: str, tmp_path: Path) -> None:
    words = (
        "tracker=local",
        "duration=2",
        "log_every=1",
        "eval_every=2",
        "save_every=2",
        "model.hidden=[16]",
    )
    swept = run_command("-m", f"sweep={grid}", *words, "name=grid", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    found = standings(tmp_path / "multirun" / "grid")
    assert {standing.state for standing in found} == {"finished"}
    assert all("sweep" not in standing.choices for standing in found)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of one job in each state; `held` lists the folders that are to be held."""
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
    with marked(sweep), exclusive(sweep / "running"):
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


def run_of(study: Path) -> list[Path]:
    return sorted(path.parent for path in study.glob("*/metrics.jsonl"))


def wait_for(happens: Callable[[], bool], process: subprocess.Popen[Any], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "local", "joblib", "ray"])
def test_what_still_saves_is_waited_for(launcher: str, workdir: Path) -> None:
    """The process of a sweep is killed alone: its jobs save and end, and the same command, at once, continues them."""
    words = (*LONG, "duration=2000", "name=study", "seed=0,1", f"hydra/launcher={launcher}")
    words += () if launcher == "basic" else ("hydra.launcher.num_jobs=2",)
    first = subprocess.Popen(command("-m", *words), cwd=workdir)
    wait_for(lambda: bool(run_of(workdir / "multirun" / "study")), first)
    first.kill()
    first.wait()
    again = run_command("-m", *words, cwd=workdir)
    assert again.returncode == 0, again.stderr
    found = standings(workdir / "multirun" / "study")
    assert [standing.state for standing in found] == ["finished"] * 2


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from one_node.running(tmp_path_factory.mktemp("slurm"))


@pytest.mark.slow
def test_jobs_that_slurm_still_has_are_not_submitted_again(slurm: None, workdir: Path) -> None:
    words = (*LONG, "name=study", "seed=0,1,2", "hydra/launcher=slurm", "hydra.launcher.num_jobs=1",
             "hydra.sweep.subdir=seed-${seed}")  # fmt: skip
    study = workdir / "multirun" / "study"
    first = subprocess.Popen(command("-m", *words), cwd=workdir)
    wait_for(lambda: bool(run_of(study)), first)
    kill([first.pid])
    first.wait()
    assert [standing.state for standing in standings(study)] == ["running", "not started", "not started"]
    other = run_command("-m", *words, "seed=1", "optimizer.lr=0.5", cwd=workdir)
    assert other.returncode == 2
    assert "still runs seed-1 with another config (optimizer.lr (0.001 there, 0.5 here))" in other.stderr
    again = subprocess.Popen(command("-m", *words), cwd=workdir, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: is_held(study), again)
    time.sleep(8)
    listed = subprocess.run(["squeue", "-h", "-r"], capture_output=True, text=True, check=True).stdout
    again.send_signal(signal.SIGINT)
    output, _ = again.communicate(timeout=120)
    assert len(listed.splitlines()) == 3
    assert output.count("which goes on") == 3
    assert again.returncode == 130
    assert [summary(run)["status"] for run in run_of(study)] == ["preempted"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib", "slurm"])
def test_24_jobs_killed_five_times(launcher: str, workdir: Path, request: pytest.FixtureRequest) -> None:
    if launcher == "slurm":
        request.getfixturevalue("slurm")
    script = [sys.executable, str(ROOT / "scripts" / "kill_sweep"), "--launcher", launcher]
    done = subprocess.run(
        [*script, "--output", "kills.json"], cwd=workdir, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(Path("kills.json").read_text())
    [swept] = found["sweeps"]
    assert (found["jobs"], swept["jobs"], swept["kills"]) == (24, 24, 5)
