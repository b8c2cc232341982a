"""The watchdog names the rank that hangs, logs its stack and ends the run."""

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from faulty_model import TORCHRUN, TWO_RANKS, fault, provide_faulty_model
from repository import ROOT
from run_folders import assert_same_state, rows, saved_updates, summary, weights
from training_runs import run_command

from hydrant.training.distributed.watchdog import RankPosition, Watchdog, _ranks_behind
from hydrant.training.distributed.world import World

pytestmark = pytest.mark.usefixtures("without_gpu")  # more ranks than GPUs

TIMEOUT = ("parallel.timeout_seconds=8",)


@pytest.fixture
def words(workdir: Path) -> tuple[str, ...]:
    return (*provide_faulty_model(workdir), *TIMEOUT)


def assert_names(folder: Path, rank: int, line: str) -> None:
    message = f"rank {rank} hangs: no progress for 8 s (parallel.timeout_seconds); rank {rank} "
    assert message in line
    assert summary(folder)["status"] == "failed"
    assert summary(folder)["error"]["type"] == "RankHung"
    assert message in (folder / "train.log").read_text()


def stack_of(folder: Path, rank: int) -> str:
    """Return the stack of a rank in the log."""
    log = (folder / "train.log").read_text()
    match = re.search(rf"^stack of rank {rank}, at .*\n((?:  .*\n)+)", log, re.MULTILINE)
    assert match is not None
    return match[1]


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_its_stack(words: tuple[str, ...], workdir: Path) -> None:
    done = run_command(*words, *TWO_RANKS, *fault("sleep", 1), cwd=workdir)
    folder = workdir / "outputs" / "run"
    assert done.returncode == 1
    assert_names(folder, 1, done.stderr.splitlines()[-1])
    assert "is at forward after update 4 (faulty.py:" in done.stderr
    assert stack_of(folder, 1).splitlines()[-1].strip().startswith("time.sleep(1000)")
    assert "run_backward" in stack_of(folder, 0)  # where it waits for the gradients
    assert saved_updates(folder / "checkpoints") == [2, 4]


@pytest.mark.slow
def test_a_rank_that_waits_outside_of_torch_distributed_is_not_named(tmp_path: Path) -> None:
    """As on CUDA: NCCL's collectives return at once, and the rank waits where it reads the result."""
    ranks: Any = mp.spawn(_watched_rank, args=(str(tmp_path),), nprocs=2, join=False)  # type: ignore[no-untyped-call]
    for rank in ranks.processes:  # unlike ranks.join(), this does not end one rank because another has ended
        rank.join()
        assert rank.exitcode == 1, "the watchdog ends both"
    report = (tmp_path / "report").read_text()
    assert report.startswith("rank 1 hangs: ")
    assert "at forward after update 1 (test_watchdog.py:" in report


def _watched_rank(rank: int, folder: str) -> None:
    report, limit = Path(folder, "report"), 1.0
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    world = World(rank, rank, 2, torch.device("cpu"))
    with Watchdog(world, limit, lambda error, stacks: report.write_text(str(error)) and None) as watchdog:
        for num_updates in range(2):  # the limit applies from the second update on
            watchdog.enter("forward", num_updates)
            dist.all_reduce(torch.ones(1))
        if rank == 1:
            time.sleep(1000)
        work: Any = dist.all_reduce(torch.ones(1), async_op=True)
        while not work.is_completed():
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ({0: (8, 5, True), 1: (7, 5, False)}, [1]),  # rank 0 is in its backward
        ({0: (7, 5, True), 1: (7, 5, False)}, [1]),  # rank 0 waits in the store
        ({0: (7, 6, False), 1: (7, 5, False)}, [1]),  # rank 0 waits for its GPU
        ({0: (7, 5, False), 1: (7, 5, False), 2: (8, 6, False)}, [0, 1]),
        ({0: (7, 5, True), 1: (7, 5, True)}, [0, 1]),  # in different collectives
    ],
)
def test_the_ranks_behind_are_found(positions: dict[int, tuple[int, int, bool]], expected: list[int]) -> None:
    full = {
        rank: RankPosition(num_phases, "forward", "model.py:1", num_collectives, waits, "")
        for rank, (num_phases, num_collectives, waits) in positions.items()
    }
    assert _ranks_behind(full) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sleep", "stop"])
def test_a_rank_that_hangs_is_restarted(kind: str, words: tuple[str, ...], workdir: Path) -> None:
    """Also a stopped process, which cannot report its position."""
    words = (*words, *TWO_RANKS, *fault(kind, 0), "parallel.max_restarts=1")
    done = run_command(*words, cwd=workdir)
    folder = workdir / "outputs" / "run"
    assert done.returncode == 0, done.stderr
    assert "rank 0 hangs: no progress" in (folder / "train.log").read_text()
    whole = run_command(*words, "name=whole", cwd=workdir)
    assert whole.returncode == 0, whole.stderr
    assert rows(folder) == rows(workdir / "outputs" / "whole")
    assert_same_state(weights(folder), weights(workdir / "outputs" / "whole"))


@pytest.mark.slow
def test_a_rank_of_torchrun_that_hangs_is_named(words: tuple[str, ...], workdir: Path) -> None:
    done = subprocess.run(
        [*TORCHRUN, str(ROOT / "train.py"), *words, *fault("sleep", 0)], cwd=workdir, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    folder = workdir / "outputs" / "run"
    assert done.returncode != 0
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert_names(folder, 0, line)
    assert "time.sleep(1000)" in stack_of(folder, 0)
