"""Ejected files of several ranks train bit for bit what their configs train. Real ranks, gloo."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from eject_files import write_files
from eject_options import random_cases
from ejected import TINY, check_folder, rows_of, run_program, trained
from spawned import spawn

from hydrant.commands.eject.command import program
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.training.distributed.world import World

RANKS = "parallel.num_processes=2"
SEQUENCES = (
    "data=tokens data.root=../texts data.sequence_length=16 task=language_modeling global_batch_size=16 "
    "eval_batch_size=6 limit_train_samples=null limit_val_samples=14 model=gpt model.num_layers=1 model.width=16 "
    "model.num_heads=2"
)
REFUSED = ("fp16", "compile=", "=lbfgs", "=sam", "skip_non_finite")
"""Words of what several ranks cannot have yet."""
CASES = (
    "micro_batch_size=8 averaging=ema max_grad_norm=0.1 mixing=mixup model.dropout=0.5 eval_batch_size=16",
    "micro_batch_size=8 parallel.static_graph=true model=convnet model.widths=[4,8] "
    "data.augment.max_shift=1 precision=bf16 eval_batch_size=20",
    f"{SEQUENCES} data.sampling=documents optimizer=schedule_free_adamw",
    "data=csv data.train=../houses.csv limit_train_samples=60 limit_val_samples=15 data.target=price task=regression "
    "scheduler=plateau patience=1 eval_batch_size=5",
    "data=memmap data.train=../arrays_train data.val=../arrays_val data.input_shape=[4] data.num_classes=3 "
    "data.num_workers=0 limit_train_samples=50 limit_val_samples=25 micro_batch_size=8 eval_batch_size=10",
)


def compare(cases: Sequence[str], workdir: Path, num_ranks: int = 2) -> None:
    """Compare each program with its run, on several ranks. The folder has the files of `write_files`."""
    for number in range(len(cases)):
        (workdir / str(number)).mkdir()
    ports = free_ports(2 * len(cases))
    spawn(_compare_on_rank, list(cases), workdir, ports, num_ranks, num_ranks=num_ranks)


def _compare_on_rank(
    rank: int, cases: Sequence[str], workdir: Path, ports: list[int], num_ranks: int
) -> None:
    torch.set_num_threads(1)
    for number, words in enumerate(cases):
        folder = workdir / str(number)
        os.chdir(folder)
        os.environ |= environment_of_rank(rank, num_ranks, ports[2 * number])
        world = World.from_launcher()
        with world.process_group():
            reference = folder / ("reference" if rank == 0 else f"of_rank_{rank}")
            text, weights = trained(f"parallel.num_processes={num_ranks} {words}", reference)
        os.environ |= environment_of_rank(rank, num_ranks, ports[2 * number + 1])
        run_program(text)
        if world.is_rank_zero:
            check_folder(words, folder, weights)


def environment_of_rank(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets. The ranks are on the CPU."""
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    return {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""}


def free_ports(count: int) -> list[int]:
    """Return ports that no process uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_programs_of_ranks_train_the_same(workdir: Path) -> None:
    write_files(workdir)
    compare(CASES[:1], workdir)


@pytest.mark.slow
def test_other_programs_of_ranks_train_the_same(workdir: Path) -> None:
    write_files(workdir)
    compare(CASES[1:], workdir)


@pytest.mark.slow
def test_programs_of_three_ranks_train_the_same(workdir: Path) -> None:
    sizes = "global_batch_size=48 eval_batch_size=10"
    words = ("model=convnet model.widths=[4,8]", "micro_batch_size=8 averaging=ema mixing=mixup")
    write_files(workdir)
    compare([f"{sizes} {more}" for more in words], workdir, num_ranks=3)


@pytest.mark.slow
def test_programs_of_random_configs_train_the_same_on_ranks(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(workdir)
    (workdir / "first").mkdir()
    monkeypatch.chdir(workdir / "first")  # the configs name files in the folder above
    cases = list[str]()
    for case in random_cases(300, seed=2):
        words = f"{' '.join(case.values())} eval_batch_size=4"
        if any(word in words for word in REFUSED):
            continue
        with contextlib.suppress(ConfigError):  # such as a batch size that the ranks cannot share
            program(check(compose([*TINY, RANKS, *words.split()])))
            cases.append(words)
    assert len(cases) > 30
    compare(cases, workdir)


@pytest.mark.slow
def test_ranks_continue_under_torchrun_and_another_number_is_refused(workdir: Path) -> None:
    """A checkpoint holds what each rank has measured since the last row."""
    words = ["tracker=local", "duration=8", "log_every=5", "eval_every=4", "save_every=3", RANKS]
    names = {name: program(check(compose([*words, f"name={name}"]))) for name in ("whole", "stopped")}
    line = "        optimizer.zero_grad()\n"
    stop = f"{line}        if num_updates == 7 and not (FOLDER / 'again').exists():\n"
    stop += "            dist.barrier()\n            (FOLDER / 'again').touch()\n            os._exit(9)\n"
    assert line in names["stopped"]
    texts = {**names, "stopped": names["stopped"].replace(line, stop)}
    statuses = list[int]()
    for name in ("whole", "stopped", "stopped"):
        Path(f"{name}.py").write_text(texts[name])
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", f"{name}.py"]
        statuses.append(subprocess.run(torchrun, capture_output=True, check=False).returncode)
    assert [status != 0 for status in statuses] == [False, True, False]
    assert rows_of(Path("outputs/stopped")) == rows_of(Path("outputs/whole"))
    whole, stopped = (torch.load(f"outputs/{n}/last.pt", weights_only=True)["model"] for n in names)
    assert all(torch.equal(stopped[name], value) for name, value in whole.items())
    alone = subprocess.run([sys.executable, "whole.py"], capture_output=True, text=True, check=False)
    assert (alone.returncode, alone.stderr) == (1, "start 2 ranks: torchrun --nproc-per-node 2 whole.py\n")


def test_a_program_of_ranks_finds_its_device_where_it_runs() -> None:
    text = program(check(compose([RANKS])))
    assert "    if torch.cuda.is_available():\n        torch.cuda.set_device(DEVICE)\n" in text
    assert "model, bucket_cap_mb=25, gradient_as_bucket_view=True" in text


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("parallel=fsdp", "parallel"),
        ("parallel.split_muon=true", "parallel.split_muon"),
        ("precision=fp16", "precision"),
        ("skip_non_finite=true", "skip_non_finite"),
        ("test_at_end=true data.test_ratio=0.1", "test_at_end"),
        ("compile=default", "compile"),
        ("optimizer=lbfgs", "optimizer"),
        ("optimizer=sam", "optimizer"),
    ],
)
def test_what_ranks_cannot_do_yet_is_refused(words: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        program(check(compose([*words.split(), RANKS])))
    assert caught.value.key == key
