"""`hydrant stop` signals the process that holds the lock of the folder, once, and no other process."""

import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
from answers import check
from processes import fork
from run_folders import summary
from tiny_runs import sweep

from hydrant import cli
from hydrant.extensions.stop.command import ASKED, ask_to_stop
from hydrant.runs import lock
from hydrant.runs.lock import LEASE, exclusive, shared, this_machine
from hydrant.signals import StopRequest
from hydrant.sweeps.plan import SweepFiles


def work_until_stopped(kind: str, folder: Path, seconds: float, words: Connection) -> None:
    files = SweepFiles(folder)
    files.keeps_plan = (folder / "sweep.json").exists()
    place = folder / ".commands" / str(os.getpid()) if kind == "checking" else folder
    with (exclusive if kind == "run" else shared)(place), StopRequest() as stop:
        if kind == "sweep":
            files.add([(folder / "seed-0", ["seed=0"])])
        words.send("works")
        try:
            while stop() is None:
                time.sleep(0.01)
            time.sleep(seconds)
            words.send("saved")
        except KeyboardInterrupt:
            words.send("at once")


class Worker(ForkProcess):
    """A fork of this process that works in a folder; it needs these seconds to save."""

    pid: int

    def __init__(self, kind: str, folder: Path, seconds: float = 0) -> None:
        self._words, sender = Pipe(duplex=False)
        super().__init__(target=work_until_stopped, args=(kind, folder, seconds, sender))
        self.start()
        assert self.next_word() == "works"

    def next_word(self) -> str:
        assert self._words.poll(60)
        return self._words.recv()


Work = type[Worker]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    monkeypatch.setattr("hydrant.signals._REPEATED_SECONDS", 0.1)
    yield Worker
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", "running")


def make_run(folder: Path, status: str, host: str | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "summary.json").write_text(json.dumps({"status": status, "num_updates": 3, "host": host}))
    return folder


def stop(capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0) -> dict[str, Any]:
    """Return what became of one folder, or the error."""
    assert cli.main(["stop", "--json", *map(str, words)]) == status
    printed = capsys.readouterr()
    return check(printed.err.splitlines()[-1]) if status else check(printed.out)["stopped"][0]


def test_a_process_saves_and_ends(work: Work, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = work("run", run)
    assert cli.main(["status", "--json", str(run)]) == 0
    [[entry]] = check(capsys.readouterr().out)["folders"].values()
    assert (entry["state"], entry["pid"]) == ("running", process.pid)
    stopped = stop(capsys, run)
    assert (stopped["outcome"], stopped["pids"]) == ("stopped", [process.pid])
    assert process.next_word() == "saved"
    assert not list(run.glob(f"{ASKED}*"))
    again = stop(capsys, run)
    assert (again["outcome"], again["pids"], again["state"]) == ("idle", [], "killed")


@pytest.mark.slow
def test_several_requests_let_it_save(work: Work, run: Path) -> None:
    """A run takes a second SIGTERM, after a while, for "at once"."""
    process = work("run", run, seconds=1)
    ended = list[bool | None]()
    requests = [
        threading.Thread(target=lambda: ended.append(ask_to_stop(run, process.pid, now=False, seconds=20)))
        for _ in range(3)
    ]
    for ask in requests:
        ask.start()
        time.sleep(0.2)
    for ask in requests:
        ask.join()
    assert process.next_word() == "saved"
    assert ended == [True, True, True]


@pytest.mark.parametrize("is_first", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_now_does_not_wait_for_saving(is_first: bool, work: Work, run: Path) -> None:
    """Two signals at once would come in the order of their numbers, and the run would save."""
    process = work("run", run, seconds=60)
    assert is_first or ask_to_stop(run, process.pid, now=False, seconds=0.5) is False
    assert ask_to_stop(run, process.pid, now=True, seconds=20) is True
    assert process.next_word() == "at once"


@pytest.mark.parametrize("kind", ["sweep", "checking"])
def test_a_sweep_is_stopped_by_its_own_process(
    kind: str, work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that checks its jobs before the first starts, so that no plan names it."""
    process = work(kind, tmp_path / "sweep")
    if kind == "sweep":
        make_run(tmp_path / "sweep" / "seed-0", "running")
    stopped = stop(capsys, tmp_path / "sweep")
    assert (stopped["outcome"], stopped["pids"]) == ("stopped", [process.pid])
    assert process.next_word() == "saved"


@pytest.mark.slow
def test_both_commands_that_work_at_a_sweep_are_stopped(
    work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The jobs of the plan name the later one. A second request sends no second signal to one that still saves."""
    folder = tmp_path / "sweep"
    make_run(folder / "seed-0", "running")
    first, second = work("sweep", folder, seconds=1), work("sweep", folder)
    assert ask_to_stop(folder, first.pid, now=False, seconds=0.1) is False
    stopped = stop(capsys, folder)
    assert (stopped["outcome"], sorted(stopped["pids"])) == ("stopped", sorted([first.pid, second.pid]))
    assert [process.next_word() for process in (first, second)] == ["saved"] * 2
    assert not list(folder.glob(f"{ASKED}*"))


def test_a_backup_that_locks_a_sweep_is_not_stopped(
    work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = work("sweep", tmp_path / "sweep")
    assert "stop its sweep: hydrant stop " in stop(capsys, tmp_path / "sweep" / "seed-0", status=1)["message"]
    wait = ["flock", "--shared", str(tmp_path / "sweep"), "sh", "-c", "echo; exec sleep 60"]
    with subprocess.Popen(wait, stdout=subprocess.PIPE, process_group=0) as backup:
        assert backup.stdout is not None
        backup.stdout.readline()
        assert stop(capsys, tmp_path / "sweep")["pids"] == [process.pid]
        assert "cannot be found here" in stop(capsys, tmp_path / "sweep", status=1)["message"]
        assert backup.poll() is None
        os.killpg(backup.pid, signal.SIGKILL)


@pytest.mark.parametrize("flags", [[], ["--now"]])
def test_a_run_that_is_starting_is_shown_and_stopped(
    flags: list[str], work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It makes its data set, so that its folder holds nothing but the lease."""
    process = work("run", tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LEASE]
    assert cli.main(["status", "--json", str(tmp_path / "run")]) == 0
    [[entry]] = check(capsys.readouterr().out)["folders"].values()
    assert (entry["state"], entry["pid"]) == ("starting", process.pid)
    assert stop(capsys, *flags, tmp_path / "run")["pids"] == [process.pid]
    process.join()


def test_a_sweep_whose_process_cannot_be_found_is_not_called_idle(
    work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one in another container, or on a system without /proc."""
    process = work("sweep", tmp_path / "sweep")
    monkeypatch.setattr(lock, "_PROC", tmp_path / "no_proc")
    assert cli.main(["stop", str(tmp_path / "sweep")]) == 1
    assert "a process that cannot be found here works at it; stop it where it" in capsys.readouterr().err
    assert process.is_alive()


@pytest.mark.parametrize("queued", [[], pytest.param(["what waits"], marks=pytest.mark.slow)])
def test_the_runs_that_a_killed_sweep_left_are_stopped(
    queued: list[str], work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also if its queue, besides cancelling what waits, has sent SIGTERM to one of them, as SLURM does."""
    processes = [work("run", make_run(tmp_path / "sweep" / f"seed-{n}", "running"), 1) for n in range(2)]
    os.kill(processes[0].pid, signal.SIGTERM if queued else 0)
    time.sleep(0.3)
    monkeypatch.setattr("hydrant.extensions.stop.command.cancel", lambda _: queued)
    stopped = stop(capsys, tmp_path / "sweep")
    assert (sorted(stopped["pids"]), stopped["queued"]) == (sorted(p.pid for p in processes), queued)
    assert [process.next_word() for process in processes] == ["saved"] * 2


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_forged_lease_stops_nobody(
    is_locked: bool, work: Work, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of a stranger names the process of another run; it is locked by a third one, or by none."""
    bystander = work("run", make_run(tmp_path / "mine", "running"))
    content = f"{this_machine()}\nuuid\n{bystander.pid}\n"
    if not is_locked:
        (run / LEASE).write_text(content)
        assert stop(capsys, run)["outcome"] == "idle"
    else:
        with exclusive(run):
            (run / LEASE).write_text(content)
            assert "cannot be found here" in stop(capsys, run, status=1)["message"]
    for pid in (0, -1, os.getpid(), 2**31):
        (run / LEASE).write_text(f"{this_machine()}\nuuid\n{pid}\n")
        assert stop(capsys, run)["outcome"] == "idle"
    (run / "sweep.json").write_text(
        json.dumps({"began": 0, "commands": [{"pid": bystander.pid, "machine": this_machine()}], "jobs": []})
    )
    assert ask_to_stop(run, bystander.pid, now=True, seconds=0) is None
    assert bystander.is_alive()
    assert stop(capsys, tmp_path / "mine")["outcome"] == "stopped"


def test_a_plan_or_a_link_of_a_stranger_stops_no_run_elsewhere(
    work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bystander = work("run", make_run(tmp_path / "mine", "running"))
    make_run(tmp_path / "theirs" / "seed-0", "finished")
    (tmp_path / "theirs" / "linked").symlink_to(tmp_path / "mine")
    (tmp_path / "theirs" / "itself").symlink_to(tmp_path / "theirs" / "itself")
    job = {"run": "../mine", "overrides": [], "refused": None}
    command = {"pid": bystander.pid, "machine": this_machine()}
    plan = {"began": 0, "commands": [command], "machine": this_machine(), "host": "x", "jobs": [job]}
    (tmp_path / "theirs" / "sweep.json").write_text(json.dumps(plan))
    assert stop(capsys, tmp_path / "theirs")["outcome"] == "idle"
    assert bystander.is_alive()


def test_a_run_of_another_machine_is_stopped_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "sweep" / "seed-0", "running", host="node17")
    (run / LEASE).write_text(f"another boot\nuuid\n{os.getpid()}\n")
    assert "runs on node17" in stop(capsys, run, status=1)["message"]
    assert "runs on node17" in stop(capsys, tmp_path / "sweep", status=1)["message"]


def test_runs_of_one_process_are_stopped_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lanes = [make_run(tmp_path / "sweep" / f"seed-{n}", "running") for n in range(2)]
    with exclusive(lanes[0]), exclusive(lanes[1]):
        error = stop(capsys, lanes[0], status=2)
        assert error["message"].endswith("is one of 2 runs that train in one process")


def test_a_folder_without_runs_is_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workdir / "empty").mkdir()
    assert stop(capsys, "empty", status=2)["key"] == "FOLDER"
    assert stop(capsys, status=2)["message"].startswith("FOLDER: give a run or a sweep")


def test_a_real_sweep_stops_its_job_and_starts_no_other(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--json", "seed=0,1", "name=sweep", "eval_every=null", "save_every=null", "duration=1000000")

    def start() -> int:
        out, err = Path("out"), Path("err")
        with (
            out.open("w") as stdout,
            err.open("w") as stderr,
            redirect_stdout(stdout),
            redirect_stderr(stderr),
        ):
            return sweep(workdir, words)

    (workdir / "multirun" / "sweep" / ".commands" / "999999999").mkdir(parents=True)  # a killed sweep left it
    pid = fork(start)
    while not (rows := list(workdir.glob("multirun/sweep/seed-0*/metrics.jsonl"))):
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    assert (workdir / "multirun" / "sweep" / ".commands" / str(pid)).exists()
    assert stop(capsys, "multirun/sweep")["outcome"] == "stopped"
    assert not (workdir / "multirun" / "sweep" / ".commands").exists()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGTERM
    assert check(Path("out").read_text())["states"] == {"preempted": 1, "not started": 1}
    assert check(Path("err").read_text().splitlines()[-1])["exit_status"] == 143
    assert summary(rows[0].parent)["status"] == "preempted"
