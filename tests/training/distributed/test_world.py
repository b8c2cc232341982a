"""The process group of a run, and errors that travel between ranks."""

import os
import pickle
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spawned import spawn

from hydrant import cli
from hydrant.errors import ConfigError, Interrupted, NonFiniteError, RankDied
from hydrant.training.distributed import world
from hydrant.training.distributed.world import World


def test_the_process_group_restores_the_excepthook() -> None:
    """torch wraps the hook at each initialization, so the chain would grow with every run in a process."""
    hook = sys.excepthook
    for _ in range(2):
        with World(0, 0, 1, torch.device("cpu")).process_group():
            assert dist.is_initialized()
        assert sys.excepthook is hook
    with pytest.raises(ValueError, match="boom"), World(0, 0, 1, torch.device("cpu")).process_group():
        raise ValueError("boom")
    assert sys.excepthook is hook


def test_a_process_group_inside_another_is_that_group() -> None:
    with World(0, 0, 1, torch.device("cpu")).process_group():
        group = dist.group.WORLD
        with World(0, 0, 1, torch.device("cpu")).process_group():
            assert dist.group.WORLD is group
        assert dist.is_initialized()
    assert not dist.is_initialized()


def test_a_process_group_inside_another_keeps_its_timeout() -> None:
    with World(0, 0, 1, torch.device("cpu")).process_group(7):
        with World(0, 0, 1, torch.device("cpu")).process_group():
            pass
        assert _timeout() == 7 + world._EXTRA_SECONDS


def _timeout() -> float:
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    return backend.options._timeout.total_seconds()


def _launched(rank: int, port: int) -> World:
    """Return one of two ranks on the CPU, as a launcher starts them."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "", **address}
    return World.from_launcher()


def _meet_twice(rank: int, port: int, folder: str) -> None:
    ranks = _launched(rank, port)
    for timeout in (60.0, 90.0, 120.0):
        with ranks.process_group(timeout):
            assert ranks.all_gather(rank) == [0, 1]
            assert _timeout() == timeout + world._EXTRA_SECONDS
            if rank == 1 and timeout == 60:
                time.sleep(0.5)  # rank 0 asks for the next group first
    Path(folder, f"rank{rank}").touch()


def test_ranks_of_a_launcher_make_one_group_after_another(tmp_path: Path) -> None:
    """They agree on the config in one group, and train in the next one, with a timeout of the config."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_meet_twice, port, str(tmp_path), num_ranks=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0", "rank1"]


@pytest.mark.slow
def test_ranks_that_do_not_meet_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """This rank waits for rank 0, which never comes."""
    monkeypatch.setattr(world, "_EXTRA_SECONDS", 0.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
        for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MASTER_PORT", port)
        message = f"the 2 ranks did not meet at 127.0.0.1:{port} \\(MASTER_ADDR, MASTER_PORT\\)"
        with pytest.raises(RankDied, match=message), World(1, 1, 2, torch.device("cpu")).process_group(1):
            pass


def test_rank_zero_says_for_which_ranks_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(world, "_SILENT_SECONDS", 0.1)
    store = dist.HashStore()
    store.set("rank/2", "")

    def come_late() -> None:
        while not (text := capsys.readouterr().err):
            time.sleep(0.01)
        said.append(text)
        store.set("rank/1", "")

    said = list[str]()
    late = threading.Thread(target=come_late)
    late.start()
    world._wait_for_ranks(store, 0, 3, timedelta(seconds=30))
    late.join()
    assert said == [
        "waiting for 1 of 3 ranks: 1; to train without them, write env -u RANK before the command\n"
    ]
    world._wait_for_ranks(store, 0, 3, timedelta(seconds=30))
    assert capsys.readouterr().err == ""


SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "2", "PATH": ""}  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({"SLURM_STEP_NODELIST": "node[01-03,07]"}, ("node01", "20219")),
        ({"MASTER_ADDR": "here"}, ("here", "20219")),
        ({"MASTER_ADDR": "here", "MASTER_PORT": "1", "SLURM_JOB_ID": "x"}, ("here", "1")),
    ],
)
def test_srun_gives_the_variables_without_a_command(
    variables: dict[str, str], address: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name, value in (SRUN | variables).items():
            patch.setenv(name, value)
        patch.setattr(os, "environ", dict(os.environ))
        ranks = World.from_launcher()
        assert (ranks.rank, ranks.local_rank, ranks.world_size) == (3, 1, 4)
        assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == address


def _meet_once_of_twice(rank: int, port: int) -> None:
    ranks = _launched(rank, port)
    with ranks.process_group(60):
        ranks.all_gather(rank)
    if rank == 0:
        world._EXTRA_SECONDS = 0.0
        with pytest.raises(RankDied, match="the 2 ranks did not meet at 127"), ranks.process_group(1):
            pass


def test_a_rank_that_dies_between_two_groups_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_meet_once_of_twice, port, num_ranks=2)


def test_every_error_can_be_sent_to_other_ranks() -> None:
    class Local(Exception):
        """Cannot be pickled, because its class cannot be imported."""

    for error in (NonFiniteError("loss", 1, 2), Interrupted(15, 3), ConfigError("key", "message")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert str(world._picklable(Local("boom"))) == "Local: boom"
    error = KeyError("a")
    assert world._picklable(error) is error


@pytest.mark.parametrize(
    ("num_visible", "local_rank", "expected"),
    [(1, 3, "cuda:0"), (4, 3, "cuda:3"), (1, 0, "cuda:0"), (0, 1, "cpu")],
)
def test_a_rank_uses_the_only_visible_gpu_or_that_of_its_local_rank(
    num_visible: int, local_rank: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: num_visible > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_visible)
    for name, value in {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": local_rank}.items():
        monkeypatch.setenv(name, str(value))
    assert World.from_launcher().device == torch.device(expected)


def test_more_ranks_than_gpus_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    world.check_gpus(2)
    with pytest.raises(ConfigError, match="num_processes: 3 ranks need as many GPUs, but there are 2; give"):
        world.check_gpus(3)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "x"}, "RANK: needs a whole number of 0 or more, not 'x'"),
        ({"RANK": "-1"}, "RANK: needs a whole number of 0 or more, not '-1'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK: needs less than WORLD_SIZE=2, not 2"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE: needs a whole number"),
        ({"RANK": "0", "LOCAL_RANK": ""}, "LOCAL_RANK: needs a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR: "),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}, "MASTER_ADDR: "),
        ({"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS: needs a whole number"),
        (
            SRUN | {"SLURM_STEP_NODELIST": "a["},
            "MASTER_ADDR: the first host is not known: SLURM_STEP_NODELIST is 'a['",
        ),
    ],
)
def test_wrong_variables_of_a_launcher_are_named(
    variables: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "tracker=local"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {message}")
