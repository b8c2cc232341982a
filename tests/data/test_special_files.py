"""Pipes among the files of a user are refused at once: opening one would wait for its writer."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from special_files import check_refuses_pipe, ends, options
from training_runs import DIGITS, Train

from hydrant import cli
from hydrant.data import memmap, tensors

__all__ = ["ends"]


READERS: dict[str, Callable[[Path], Any]] = {
    "inputs.npy": lambda file: memmap(**options("memmap", train=str(file.parent), val=str(file.parent))),
    "points.npz": lambda file: tensors(**options("tensors", train=str(file), val=str(file))),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_in_the_place_of_a_file_of_data(name: str, tmp_path: Path) -> None:
    check_refuses_pipe(READERS[name], name, tmp_path)


def test_a_pipe_in_the_place_of_an_option(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workdir / "conf" / "model").mkdir(parents=True)
    os.mkfifo(workdir / "conf" / "model" / "piped.yaml")
    assert cli.main(["train", "model=piped", "tracker=local"]) == 2
    assert "piped" in capsys.readouterr().err


def test_a_pipe_in_a_checkpoint(workdir: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(*DIGITS, "duration=2")
    checkpoint = (run / "checkpoints" / "last").resolve()
    for name in ("manifest.json", "training.json"):
        saved = (checkpoint / name).read_bytes()
        (checkpoint / name).unlink()
        os.mkfifo(checkpoint / name)
        assert cli.main(["evaluate", str(run)]) != 0
        (checkpoint / name).unlink()
        (checkpoint / name).write_bytes(saved)
    assert cli.main(["evaluate", str(run)]) == 0
