"""What goes wrong on one rank, with the disk or with who started a run. Real processes, real limits."""

from __future__ import annotations

import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checks import ROOT, assert_same_state, command, rows, run_command, summary, training, weights
from processes import descendants, is_alive, wait_for_row, wait_until_gone

from hydrant import distributed, loop, watchdog
from hydrant.errors import ConfigError, Interrupted, NonFiniteError

Train = Callable[..., Path]

OWN = """
import os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn

leave = dist.destroy_process_group

def leave_first(*groups):
    leave(*groups)
    end = time.monotonic() + 20
    while not (groups or Path("leaving").exists()) and time.monotonic() < end:
        time.sleep(0.01)

def leave_last(*groups):
    if not groups:
        Path("leaving").touch()
        time.sleep(3)
    leave(*groups)

class Net(nn.Module):
    '''Does something in a forward of training, on one rank; once in a folder.'''

    def __init__(self, *, deed, rank, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[1] * input_shape[2], num_classes)
        self.deed, self.is_here, self.num_calls = deed, os.environ.get("RANK") == str(rank), 0
        if deed in ("raise", "refuse"):  # so that a rank is asked to stop which has only to say how it ended
            dist.destroy_process_group = leave_first if self.is_here else leave_last
        if deed == "refuse":
            raise ValueError("boom")

    def forward(self, inputs):
        self.num_calls += torch.is_grad_enabled()
        if self.is_here and self.num_calls == 5 and torch.is_grad_enabled() and not Path("done").exists():
            Path("done").touch()
            match self.deed:
                case "sleep":
                    time.sleep(1000)
                case "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "poison":
                    inputs = inputs * float("nan")
                case "raise":
                    raise ValueError("boom")
                case "exit":
                    os._exit(3)
        return self.linear(inputs.flatten(1))
"""
NET = ("model._target_=own.Net", "~model.hidden", "~model.dropout", "allow_targets=[own]")
SHORT = ("tracker=local", "duration=8", "log_every=2", "eval_every=8", "save_every=2", "keep_last=9")
TWO = ("parallel.num_processes=2",)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture
def own(workdir: Path) -> tuple[str, ...]:
    """The words of a run of two ranks with the network above."""
    (workdir / "own.py").write_text(OWN)
    return (*SHORT, *NET, "name=run")


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name[7:]) for path in (folder / "checkpoints").glob("update_*"))


@pytest.mark.slow
def test_nan_on_one_rank_ends_all_and_nothing_is_saved(own: tuple[str, ...], workdir: Path) -> None:
    done = run_command(*own, *TWO, "+model.deed=poison", "+model.rank=1", "log_every=1", cwd=workdir)
    folder = workdir / "outputs" / "run"
    assert done.returncode == 1
    told = "train/loss became NaN or infinite between updates 4 and 5 on rank 1. Lower "
    assert summary(folder)["error"]["message"].startswith(told)
    assert summary(folder)["error"]["type"] == "NonFiniteError"
    assert len(done.stderr.splitlines()) == 1  # of all ranks, and of who started them
    assert told in done.stderr
    assert saved(folder) == [2, 4]


@pytest.mark.slow
def test_nan_on_one_rank_is_passed_over_by_all(own: tuple[str, ...], workdir: Path) -> None:
    """With a loss scaler the others would try the update again."""
    words = (*own, *TWO, "+model.deed=poison", "+model.rank=1", "skip_non_finite=true", "precision=fp16")
    done = run_command(*words, cwd=workdir)
    assert done.returncode == 0, done.stderr
    assert rows(workdir / "outputs" / "run")[-1]["optim/num_skipped"] == 1


def assert_told(folder: Path, said: str) -> None:
    """An error of rank 1 is the run's: in its last line, its summary and, with the traceback, its log."""
    told = "error: rank 1: ValueError: boom (at own.py:"
    assert any(line.startswith(told) for line in said.splitlines())
    assert summary(folder)["error"] == {"type": "ValueError", "message": "rank 1: boom"}
    assert "rank 1: the run failed\nTraceback" in (folder / "train.log").read_text()
    assert "ValueError: boom\n" in (folder / "train.log").read_text()


def test_an_error_on_one_rank_is_the_run_s_and_starts_nothing_again(
    own: tuple[str, ...], workdir: Path
) -> None:
    restarts = "parallel.max_restarts=2"
    done = run_command(*own, *TWO, "+model.deed=raise", "+model.rank=1", restarts, cwd=workdir)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert_told(workdir / "outputs" / "run", done.stderr)


def by_torchrun(words: tuple[str, ...], workdir: Path) -> str:
    """What a run of two ranks says, with torchrun's own words."""
    done = subprocess.run(
        [*TORCHRUN, str(ROOT / "train.py"), *words],
        cwd=workdir, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr


@pytest.mark.slow
def test_an_error_on_one_rank_of_torchrun_is_the_run_s(own: tuple[str, ...], workdir: Path) -> None:
    said = by_torchrun((*own, "+model.deed=raise", "+model.rank=1"), workdir)
    assert_told(workdir / "outputs" / "run", said)
    assert "traceback : ValueError: boom (at own.py:" in said.partition("Root Cause")[2]


@pytest.mark.slow
def test_a_model_that_refuses_is_told_by_torchrun_s_first_rank(own: tuple[str, ...], workdir: Path) -> None:
    """The others are done sooner, and torchrun asks it to stop."""
    said = by_torchrun((*own, "+model.deed=refuse", "+model.rank=1"), workdir)
    assert "error: model: own.Net refuses it: boom" in said.splitlines()


@pytest.mark.slow
def test_a_config_that_is_refused_is_told_by_torchrun_s_first_rank(
    own: tuple[str, ...], workdir: Path
) -> None:
    """That rank alone composes, and imports the model's module."""
    (workdir / "own.py").write_text(f"{OWN}\ndist.destroy_process_group = leave_last\n")
    said = by_torchrun((*own, "+model.deed=none", "+model.rank=1", "+model.nothing=1"), workdir)
    assert (workdir / "leaving").exists()
    assert any(line.startswith("error: model.nothing: ") for line in said.splitlines())


@pytest.mark.slow
def test_a_rank_that_dies_is_started_again_whatever_resume_says(own: tuple[str, ...], workdir: Path) -> None:
    words = (*own, *TWO, "+model.deed=exit", "+model.rank=1", "resume=null", "parallel.max_restarts=1")
    done = run_command(*words, cwd=workdir)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "restart 1 of 1: error: rank 1 ended with exit status 3"
    assert "continuing from" in done.stdout


@pytest.mark.slow
def test_ctrl_c_again_stops_all_ranks_at_once_without_saving(own: tuple[str, ...], workdir: Path) -> None:
    words = command(*own, *TWO, "+model.deed=sleep", "+model.rank=1")
    process = subprocess.Popen(words, cwd=workdir, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while not (workdir / "done").exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
    for _ in range(2):
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    told = "stopped by SIGINT without saving; the same command continues from update_00000004"
    assert said.splitlines()[-1] == told
    assert summary(workdir / "outputs" / "run")["status"] == "preempted"


def test_an_error_reaches_every_rank_whatever_made_it() -> None:
    class Local(Exception):
        """Cannot be found by who reads it."""

    for error in (NonFiniteError("loss", 1, 2), Interrupted(15, 3), ConfigError("key", "told")):
        read = pickle.loads(pickle.dumps(error))
        assert (type(read), str(read), vars(read)) == (type(error), str(error), vars(error))
    assert str(distributed._travelling(Local("boom"))) == "Local: boom"
    assert distributed._travelling(known := KeyError("a")) is known


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    distributed.check_gpus(2)
    with pytest.raises(ConfigError, match="num_processes: 3 ranks need as many GPUs, but there are 2; give"):
        distributed.check_gpus(3)


def assert_named(folder: Path, rank: int, said: str) -> None:
    told = f"rank {rank} hangs: nothing has moved for 8 s (parallel.timeout_seconds); rank {rank} "
    assert told in said.splitlines()[-1]
    assert summary(folder)["status"] == "failed"
    assert summary(folder)["error"]["type"] == "RankHung"
    assert told in (folder / "train.log").read_text()


def stack_of(folder: Path, rank: int) -> str:
    found = re.search(
        rf"^stack of rank {rank}, at .*\n((?:  .*\n)+)", (folder / "train.log").read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1]


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_its_stack(own: tuple[str, ...], workdir: Path) -> None:
    words = (*own, *TWO, "+model.deed=sleep", "+model.rank=1", "parallel.timeout_seconds=8")
    done = run_command(*words, cwd=workdir)
    folder = workdir / "outputs" / "run"
    assert done.returncode == 1
    assert_named(folder, 1, done.stderr)
    assert "is at forward after update 4 (own.py:" in done.stderr
    assert stack_of(folder, 1).splitlines()[-1].strip().startswith("time.sleep(1000)")
    assert "run_backward" in stack_of(folder, 0)  # where the gradients are exchanged
    assert saved(folder) == [2, 4]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({0: (8, True), 1: (7, False)}, [1]),  # 0 is in its backward
        ({0: (7, True), 1: (7, False)}, [1]),
        ({0: (7, False), 1: (7, False), 2: (8, False)}, [0, 1]),
        ({0: (7, True), 1: (7, True)}, [0, 1]),  # in different collectives
    ],
)
def test_who_is_behind(places: dict[int, tuple[int, bool]], expected: list[int]) -> None:
    found = {rank: watchdog.Place(n, "forward", "own.py:1", waits, "") for rank, (n, waits) in places.items()}
    assert watchdog._behind(found) == expected


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["sleep", "stop"])
def test_a_rank_that_hangs_is_started_again(deed: str, own: tuple[str, ...], workdir: Path) -> None:
    """Also one that cannot even say where it is."""
    words = (*own, *TWO, "+model.rank=0", "parallel.timeout_seconds=8", "parallel.max_restarts=1")
    done = run_command(*words, f"+model.deed={deed}", cwd=workdir)
    folder = workdir / "outputs" / "run"
    assert done.returncode == 0, done.stderr
    assert "rank 0 hangs: nothing has moved" in (folder / "train.log").read_text()
    whole = run_command(*words, f"+model.deed={deed}", "name=whole", cwd=workdir)
    assert whole.returncode == 0, whole.stderr
    assert rows(folder) == rows(workdir / "outputs" / "whole")
    assert_same_state(weights(folder), weights(workdir / "outputs" / "whole"))


@pytest.mark.slow
def test_a_rank_of_torchrun_that_hangs_is_named(own: tuple[str, ...], workdir: Path) -> None:
    words = (*own, "+model.deed=sleep", "+model.rank=0", "parallel.timeout_seconds=8")
    done = subprocess.run(
        [*TORCHRUN, str(ROOT / "train.py"), *words], cwd=workdir, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    folder = workdir / "outputs" / "run"
    assert done.returncode != 0
    [said] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert_named(folder, 0, said)
    assert "time.sleep(1000)" in stack_of(folder, 0)


@pytest.mark.slow
def test_ranks_end_with_who_started_them_and_leave_the_folder_free(workdir: Path) -> None:
    words = (
        "name=run",
        "tracker=local",
        "model.hidden=[16]",
        *TWO,
        "log_every=20",
        "save_every=20",
        "eval_every=null",
    )
    (temporary := workdir / "temporary").mkdir()
    variables = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command(*words, "duration=100000"), cwd=workdir, env=variables)
    folder = workdir / "outputs" / "run"
    wait_for_row(folder, 40, process)
    second = run_command(*words, "duration=100000", cwd=workdir)
    assert second.returncode == 2
    assert "error: name: another process is at work in " in second.stderr.splitlines()[-1]
    assert process.poll() is None
    ranks = list(descendants(process.pid))
    assert len(ranks) >= 2
    assert list(temporary.glob("hydrant-ranks-*/pids.json"))
    assert not list(temporary.glob("hydrant-ranks-*/job-*.json"))  # they hold secrets
    process.kill()
    process.wait()
    wait_until_gone(ranks, 30)
    assert summary(folder)["status"] == "preempted"  # they have saved
    again = run_command(
        *words, f"duration={summary(folder)['num_updates'] + 1}", "resume_strict=false", cwd=workdir
    )
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("by", ["torchrun", "sweep"])
def test_ranks_end_with_torchrun_and_with_a_sweep(by: str, workdir: Path) -> None:
    words = [
        "name=run",
        "tracker=local",
        "model.hidden=[16]",
        "log_every=20",
        "save_every=20",
        "duration=100000",
    ]
    started = [*TORCHRUN, str(ROOT / "train.py"), *words]
    folder = workdir / "outputs" / "run"
    if by == "sweep":
        started = command("--multirun", *words, *TWO, "seed=0", "hydra.sweep.subdir=job")
        folder = workdir / "multirun" / "run" / "job"
    process = subprocess.Popen(started, cwd=workdir, stdout=subprocess.DEVNULL)
    wait_for_row(folder, 40, process)
    ranks = [pid for pid in descendants(process.pid) if is_alive(pid)]
    process.kill()
    process.wait()
    wait_until_gone(ranks, 90)
    assert summary(folder)["status"] == "preempted"


DISK = (
    "tracker=local",
    "model.hidden=[16]",
    "duration=12",
    "log_every=1",
    "eval_every=12",
    "save_every=4",
    "save_async=false",
)


def fill_disk(patch: pytest.MonkeyPatch, folder: Path, at: range) -> None:
    """While the updates `at` are made, no file of this process grows past what the rows have; the last one is torn."""
    make_update, before = loop.make_update, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(run: loop.Run, *, measure: bool) -> Any:
        if run.state.num_updates + 1 == at.start:
            most = (folder / "metrics.jsonl").stat().st_size + 40
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        if run.state.num_updates + 1 == at.stop:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return make_update(run, measure=measure)

    patch.setattr(loop, "make_update", limited)


@pytest.fixture
def _limits() -> Any:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("_limits")
def test_a_full_disk_costs_a_warning_and_no_row(
    train: Train, monkeypatch: pytest.MonkeyPatch, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = train(*DISK, name="whole")
    capfd.readouterr()
    folder = workdir / "outputs" / "run"
    with monkeypatch.context() as patch:
        fill_disk(patch, folder, range(7, 10))  # the checkpoint of update 8 does not fit either
        train(*DISK)
    said = capfd.readouterr().out
    assert said.count("metrics.jsonl cannot be written: File too large; training goes on") == 1
    assert said.count("cannot be written") == 2
    assert "update_00000008 cannot be written: File too large; update_00000004 is the last whole one" in said
    assert saved(folder) == [4, 12]
    assert summary(folder)["status"] == "finished"
    assert rows(folder) == rows(whole)
    assert_same_state(weights(folder), weights(whole))


@pytest.mark.slow
@pytest.mark.usefixtures("_limits")
def test_a_disk_that_stays_full_fails_the_run_at_its_end(
    train: Train, monkeypatch: pytest.MonkeyPatch, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = workdir / "outputs" / "run"
    with monkeypatch.context() as patch:
        fill_disk(patch, folder, range(7, 99))
        train(*DISK, status=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"error: OSError: \[Errno 27\] File too large: '.*/outputs/run/metrics\.jsonl'", said)
    assert (summary(folder)["status"], summary(folder)["error"]["type"]) == ("failed", "OSError")
    assert summary(folder)["num_updates"] == 12
    assert saved(folder) == [4]
    train(*DISK)  # the same command, with room
    whole = train(*DISK, name="whole")
    assert rows(folder) == rows(whole)
    assert_same_state(training(folder), training(whole))


READ_ONLY = """
import os, subprocess, sys
from hydrant import cli, loop

make_update = loop.make_update

def update(run, *, measure):
    if run.state.num_updates + 1 == 7:
        subprocess.run(["mount", "--bind", "outputs", "outputs"], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", "outputs"], check=True)
    return make_update(run, measure=measure)

loop.make_update = update
sys.exit(cli.main(["train", *sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs mount namespaces")
def test_a_disk_that_becomes_read_only_leaves_the_last_checkpoint(workdir: Path) -> None:
    namespace = ["unshare", "--mount", "--map-root-user"]
    words = ("name=run", *DISK)
    done = subprocess.run([*namespace, sys.executable, "-c", READ_ONLY, *words], cwd=workdir, capture_output=True,
                          text=True, check=False, timeout=200)  # fmt: skip
    folder = workdir / "outputs" / "run"
    assert done.returncode == 1, done.stderr
    assert "Read-only file system" in done.stderr.splitlines()[-1]
    assert "update 12 of 12" in done.stdout
    assert saved(folder) == [4]
    again = run_command(*words, cwd=workdir)
    assert again.returncode == 0, again.stderr
    assert len(rows(folder)) == 13
