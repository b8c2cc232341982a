"""Damaged images and dead workers, with real files and real processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import shlex
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import assert_same_state, rows, run_command, summary, weights, whole_and_resumed
from torch import Tensor

from hydrant import loop
from hydrant.data import LoaderSource, StreamSpec
from hydrant.data.faults import MAX_DAMAGED_IN_A_ROW, Faults
from hydrant.errors import DataError, OutOfMemory

SPEC = StreamSpec(0, 8, 4, 0, 1, torch.device("cpu"))
RUN = shlex.split(
    "data=image_folder data.root=images data.input_shape=[3,8,8] model=mlp model.hidden=[8] tracker=local "
    "global_batch_size=6 micro_batch_size=3 eval_batch_size=4 duration=4 log_every=1 eval_every=4 save_every=2"
)


class Samples:
    """20 samples, whose value is their index. `damaged` cannot be read; reading `fatal` raises it."""

    def __init__(self, *damaged: int, fatal: BaseException | None = None) -> None:
        self.damaged, self.fatal = damaged, fatal

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index in self.damaged:
            raise self.fatal or ValueError(f"{index} is torn")
        return index, index


def as_input(value: int) -> Tensor:
    return torch.full((1, 1, 1), float(value))


def source(samples: Samples, num_workers: int = 0, *, skips: bool = True) -> LoaderSource:
    return LoaderSource(
        samples, as_input, as_input, (0.0,), (1.0,), num_workers, faults=Faults(skips, remedy="; mend it")
    )


def read(of: LoaderSource, updates: range, world_size: int = 1, micro_batch_size: int = 4) -> list[int]:
    """The targets of some updates, in the order of the stream."""
    found = list[int]()
    streams = [of.stream(replace(SPEC, micro_batch_size=micro_batch_size, world_size=world_size, rank=rank))
               for rank in range(world_size)]  # fmt: skip
    for update in updates:
        steps = zip(*(stream.micro_batches(update) for stream in streams), strict=True)
        found += [int(t) for step in steps for batch in step for t in batch.targets]
    for stream in streams:
        stream.close()
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_next_whole_sample_stands_in_for_a_damaged_one(num_workers: int) -> None:
    whole = read(source(Samples()), range(5))
    expected = [{3: 5, 4: 5, 19: 0}.get(index, index) for index in whole]
    assert {3, 4, 19} <= set(whole)
    damaged = source(Samples(3, 4, 19), num_workers)
    assert read(damaged, range(5)) == expected
    assert read(damaged, range(2, 5)) == expected[16:]  # as after a resume
    for world_size, micro_batch_size in ((2, 2), (1, 8), (4, 2)):
        assert read(damaged, range(5), world_size, micro_batch_size) == expected
    assert damaged.faults.num_damaged == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_evaluation_leaves_damaged_samples_out(num_workers: int) -> None:
    damaged = source(Samples(0, 1, 2, 3, 7, 19), num_workers)
    batches = [batch.targets.tolist() for batch in damaged.batches(SPEC, 4)]
    assert batches == [[4, 5, 6], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18]]


def test_each_damaged_sample_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    damaged = source(Samples(3, 7), 2)
    with caplog.at_level(logging.WARNING, logger="hydrant"):
        read(damaged, range(10))
    told = sorted(record.getMessage() for record in caplog.records)
    assert len(told) == 2
    for index, message in zip((3, 7), told, strict=True):
        assert message.startswith(
            f"skipped: sample {index} of the data set cannot be read: ValueError: {index} "
        )


def test_a_folder_that_is_gone_is_not_skipped() -> None:
    with pytest.raises(
        DataError, match=rf"^{MAX_DAMAGED_IN_A_ROW} samples in a row .* the first: sample \d+ of"
    ):
        read(source(Samples(*range(20))), range(1))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_skipping_it_says_what_to_do(num_workers: int) -> None:
    with pytest.raises(DataError, match=r"^sample 3 of the data set .* \(at .*\.py:\d+\); mend it$"):
        read(source(Samples(3), num_workers, skips=False), range(5))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_full_memory_is_no_damaged_sample(num_workers: int) -> None:
    with pytest.raises(OutOfMemory, match=r"no memory left to read sample 3 .* lower data\.num_workers"):
        read(source(Samples(3, fatal=MemoryError()), num_workers), range(5))


class Deadly(Samples):
    """A worker that reads sample 3 is killed."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index, index


def test_a_dead_worker_is_told_with_its_sample_where_its_batch_is_missing() -> None:
    before = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(
        DataError, match=r"^a data worker \(pid \d+\) died while it read sample 3 of the data set: "
    ):
        read(source(Deadly(), 2), range(5))
    assert signal.getsignal(signal.SIGCHLD) is before


def damage(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:100])
    return f"images/{path.relative_to(path.parents[2])}"


@pytest.mark.slow
def test_a_run_over_damaged_images_resumes_exactly(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, image_root: Path
) -> None:
    names = [damage(image_root / name) for name in ("train/ant/0.jpg", "train/ant/1.jpg", "val/ant/0.jpg")]
    words = (*RUN, "data.on_error=skip", "data.num_workers=2")
    whole, half = whole_and_resumed(train, monkeypatch, words, stop_at=2)
    assert_same_state(weights(whole), weights(half))
    assert rows(whole) == rows(half)
    assert summary(whole)["num_damaged_samples"] == 3
    log = (whole / "train.log").read_text()
    for name in names:
        assert log.count(f"skipped: {name} cannot be read as an image") == 1
    assert "named above: 3" in log


@pytest.mark.slow
def test_damaged_images_are_counted_over_all_ranks(image_root: Path, workdir: Path) -> None:
    """Each once, and each is told in the log, whichever rank met it."""
    names = [damage(image_root / name) for name in ("train/ant/0.jpg", "train/bee/1.jpg", "val/ant/0.jpg")]
    words = (*RUN, "data.on_error=skip", "data.num_workers=1", "parallel.num_processes=2", "name=run")
    done = run_command(*words, cwd=workdir)
    assert done.returncode == 0, done.stderr
    folder = workdir / "outputs" / "run"
    assert summary(folder)["num_damaged_samples"] == 3
    log = (folder / "train.log").read_text()
    assert [log.count(f"skipped: {name} cannot be read") for name in names] == [1, 1, 1]


@pytest.mark.slow
def test_a_run_that_failed_goes_on_with_skip(
    train: Callable[..., Path], image_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = damage(image_root / "val" / "cat" / "2.jpg")
    words = (*RUN, "data.num_workers=1")
    folder = train(*words, status=1)
    last = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"error: {re.escape(name)} cannot be read as an image: .*; repair or remove it, or "
                        r"data\.on_error=skip leaves it out", last)  # fmt: skip
    assert summary(folder)["error"]["type"] == "DataError"
    train(*words, "data.on_error=skip")
    assert summary(folder)["num_damaged_samples"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("image_root")
def test_a_worker_killed_from_outside_fails_the_run(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make_update = loop.make_update

    def killing(run: loop.Run, *, measure: bool) -> Any:
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGKILL)
        return make_update(run, measure=measure)

    monkeypatch.setattr(loop, "make_update", killing)
    folder = train(*RUN, "data.num_workers=2", "duration=50", status=1)
    assert re.match(r"error: a data worker \(pid \d+\) died ", capfd.readouterr().err.splitlines()[-1])
    assert summary(folder)["error"]["type"] == "DataError"
    assert not multiprocessing.active_children()


def test_an_empty_class_folder_is_refused_before_the_run(
    train: Callable[..., Path], image_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in (image_root / "train" / "bee").iterdir():
        path.unlink()
    folder = train(*RUN, status=2)
    assert re.match(r"error: data\.train_dir: .* classes bee", capfd.readouterr().err.splitlines()[-1])
    assert not folder.exists()
