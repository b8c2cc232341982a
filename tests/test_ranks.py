"""Several ranks: the same run as one, whoever starts them, and nothing lost when one dies. Real processes, gloo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checks import ROOT, assert_same_state, command, rows, run_command, summary, weights
from processes import descendants

WORDS = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=3", "save_every=3",
         "limit_val_samples=37", "micro_batch_size=16")  # fmt: skip
LONG = ("tracker=local", "model.hidden=[16]", "duration=400", "log_every=20", "eval_every=200",
        "save_every=40")  # fmt: skip


def trained(workdir: Path, name: str, *words: str, status: int = 0) -> Path:
    done = run_command(f"name={name}", *words, cwd=workdir)
    assert done.returncode == status, done.stderr
    return workdir / "outputs" / name


def assert_alike(one: Path, other: Path) -> None:
    """Two runs logged the same but for the rounding of sums."""
    for a, b in zip(rows(one), rows(other), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-6), key


@pytest.mark.slow
def test_ranks_make_the_same_run_whoever_starts_them(workdir: Path) -> None:
    """Two ranks, by ourselves and by torchrun: one folder, the samples and losses of one rank."""
    words = (*WORDS, "model.dropout=0.3", "averaging=ema")
    one = trained(workdir, "one", *words)
    two = trained(workdir, "two", *words, "parallel.num_processes=2")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    train = [str(ROOT / "train.py"), "name=torchrun", *words]
    subprocess.run([*torchrun, *train], cwd=workdir, check=True, capture_output=True, timeout=300)
    launched = workdir / "outputs" / "torchrun"
    assert_alike(one, two)
    assert rows(two) == rows(launched)
    assert_same_state(weights(two), weights(launched))
    assert sorted(p.name for p in (workdir / "outputs").iterdir()) == ["one", "torchrun", "two"]
    assert summary(two)["status"] == summary(launched)["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("words", [("parallel.num_processes=4",), ("parallel.num_processes=2", "compile=aot_eager"),
                                   ("parallel.num_processes=2", "precision=bf16", "compile=aot_eager")])  # fmt: skip
def test_more_ranks_compiled_and_in_bfloat16(words: tuple[str, ...], workdir: Path) -> None:
    own = tuple(word for word in words if not word.startswith("parallel."))
    one = trained(workdir, "one", *WORDS, *own)
    several = trained(workdir, "several", *WORDS, *words)
    numbers = [{k: v for k, v in row.items() if not k.startswith("compile/")} for row in rows(several)]
    for a, b in zip(rows(one), numbers, strict=True):
        tolerance = 0.02 if "precision=bf16" in words else 1e-5
        assert {k: v for k, v in a.items() if k in b} == pytest.approx(b, rel=tolerance, abs=tolerance)


@pytest.mark.slow
def test_tasks_of_several_losses(workdir: Path) -> None:
    plain = tuple(word for word in WORDS if not word.startswith("model."))
    words = (*plain, "model=two", "task=two_models", "best.metric=val/loss", "best.mode=min")
    one = trained(workdir, "one", *words)
    assert_alike(one, trained(workdir, "two", *words, "parallel.num_processes=2"))


class Started:
    """A run of two ranks in processes of its own."""

    def __init__(self, workdir: Path, name: str, *words: str) -> None:
        self.folder = workdir / "outputs" / name
        self.log = workdir / f"{name}.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command(f"name={name}", *LONG, "parallel.num_processes=2", *words),
                cwd=workdir, stdout=log, stderr=log,
            )  # fmt: skip

    def wait_for(self, num_updates: int) -> None:
        limit = time.monotonic() + 120
        while not any(row["num_updates"] >= num_updates for row in self._rows()):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit
            time.sleep(0.05)

    def ranks(self) -> dict[int, int]:
        """The process of each rank."""
        found: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                told = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"hydrant.ranks" in words and self._is_ours(int(entry.name)):
                found[int(next(t for t in told if t.startswith(b"RANK="))[5:])] = int(entry.name)
        return found

    def end(self) -> int:
        return self.process.wait(timeout=240)

    def kill(self) -> None:
        """Whatever is left of it."""
        left = self.ranks().values()
        self.process.kill()
        self.process.wait()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def said(self) -> str:
        return self.log.read_text().splitlines()[-1]

    def _is_ours(self, pid: int) -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        return f"PPid:\t{self.process.pid}\n" in status

    def _rows(self) -> list[dict[str, Any]]:
        file = self.folder / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.fixture
def start(workdir: Path) -> Iterator[Callable[..., Started]]:
    """Start a run of these words in the folder `run`; none outlives its test."""
    started: list[Started] = []

    def start(*words: str) -> Started:
        started.append(Started(workdir, "run", *words))
        return started[-1]

    yield start
    for run in started:
        run.kill()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks that nothing disturbs."""
    return trained(tmp_path_factory.mktemp("whole"), "whole", *LONG, "parallel.num_processes=2")


def test_sigterm_saves_on_all_ranks_and_the_same_command_goes_on(
    whole: Path, workdir: Path, start: Callable[..., Started]
) -> None:
    run = start()
    run.wait_for(60)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM
    assert summary(run.folder)["status"] == "preempted"
    assert 60 <= summary(run.folder)["num_updates"] < 400
    trained(workdir, "run", *LONG, "parallel.num_processes=2")
    assert rows(run.folder) == rows(whole)
    assert_same_state(weights(run.folder), weights(whole))


@pytest.mark.slow
def test_ranks_that_were_suspended_go_on(whole: Path, start: Callable[..., Started]) -> None:
    run = start("parallel.timeout_seconds=5")
    run.wait_for(60)
    pids = [run.process.pid, *run.ranks().values()]
    for signum in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, signum)
        if signum == signal.SIGSTOP:
            time.sleep(12)
    assert run.end() == 0, run.said()
    assert rows(run.folder) == rows(whole)


@pytest.mark.slow
def test_a_signal_before_the_run_begins_leaves_nothing(workdir: Path) -> None:
    words = command("name=run", *LONG, "parallel.num_processes=2")
    process = subprocess.Popen(words, cwd=workdir, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while not list(descendants(process.pid)):
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (143, "stopped by SIGTERM before it began\n")
    assert not (workdir / "outputs" / "run" / "summary.json").exists()


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_and_is_named(
    whole: Path, start: Callable[..., Started]
) -> None:
    run = start()
    run.wait_for(100)
    ranks = run.ranks()
    os.kill(ranks[1], signal.SIGKILL)
    assert run.end() == 1
    assert run.said() == "error: rank 1 was killed by SIGKILL"
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    assert summary(run.folder)["status"] == "failed"
    again = start("parallel.max_restarts=1")
    again.wait_for(300)
    os.kill(again.ranks()[0], signal.SIGKILL)
    assert again.end() == 0  # by itself, from the last checkpoint
    assert rows(run.folder) == rows(whole)
    assert_same_state(weights(run.folder), weights(whole))


@pytest.mark.slow
def test_what_cannot_run_is_refused_by_all_ranks_at_once(workdir: Path) -> None:
    done = run_command(*WORDS, "parallel.num_processes=2", "global_batch_size=63", cwd=workdir)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: global_batch_size: 63 is not divisible by 2 ranks")
    done = run_command(*WORDS, "parallel=single", "parallel.num_processes=2", cwd=workdir)
    assert done.returncode == 2
    assert "use parallel=ddp" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_every_job_of_a_sweep_has_ranks_of_its_own(workdir: Path) -> None:
    words = WORDS
    done = run_command(
        "--multirun", "name=sweep", *words, "parallel.num_processes=2", "seed=0,1", cwd=workdir
    )
    assert done.returncode == 0, done.stderr
    for seed in (0, 1):
        one = trained(workdir, f"one_{seed}", *words, f"seed={seed}")
        (found,) = [f.parent for f in (workdir / "multirun/sweep").glob("*/config.yaml")
                    if f"\nseed: {seed}\n" in f.read_text()]  # fmt: skip
        assert_alike(one, found)


@pytest.mark.slow
def test_a_sum_over_ranks_in_forward_is_compiled(workdir: Path, train: Callable[..., Path]) -> None:
    """As eager on two ranks; each rank's sum is over its own samples and those of the other."""
    words = ("experiment=all_reduce_net", "tracker=local", "duration=3", "log_every=1", "eval_every=3")
    eager = trained(workdir, "eager", *words, "compile=eager", "parallel.num_processes=2")
    compiled = trained(workdir, "compiled", *words, "compile=aot_eager", "parallel.num_processes=2")
    figures = summary(compiled)["compile"]
    assert (figures["graphs"], figures["graph_breaks"], figures["recompiles"]) == (1, 0, 0)
    for a, b in zip(rows(eager), rows(compiled), strict=True):
        assert a == pytest.approx({key: b[key] for key in a}, rel=1e-5, abs=1e-6)
