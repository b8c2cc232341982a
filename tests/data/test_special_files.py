"""Pipes among the files of a user are refused at once: opening one would wait for its writer."""

import os
from pathlib import Path

import pytest
from special_files import check_refuses_pipe, ends, options
from training_runs import DIGITS, Train

from hydrant import cli
from hydrant.data import tensors

__all__ = ["ends"]


def test_a_pipe_in_the_place_of_a_file_of_data(tmp_path: Path) -> None:
    check_refuses_pipe(
        lambda file: tensors(**options("tensors", train=str(file), val=str(file))), "points.npz", tmp_path
    )


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
