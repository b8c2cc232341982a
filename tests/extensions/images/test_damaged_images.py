"""Damaged images, with real files and real processes."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from run_folders import assert_same_state, rows, summary, weights
from training_runs import Train, run_command, whole_and_resumed

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.distributed.world import World
from hydrant.training.prepare.build import prepare

RUN = shlex.split(
    "data=image_folder data.root=images data.input_shape=[3,8,8] model=mlp model.hidden=[8] tracker=local "
    "global_batch_size=6 micro_batch_size=3 eval_batch_size=4 duration=4 log_every=1 eval_every=4 save_every=2"
)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_prepared_run_knows_whether_its_rank_logs(
    rank: int, image_root: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del image_root, workdir
    world = World(rank, rank, 1, torch.device("cpu"))
    monkeypatch.setattr(World, "from_launcher", lambda: world)
    data = prepare(check(compose([*RUN, "data.on_error=skip", "data.num_workers=0"]))).data
    assert data.damaged.is_rank_zero == (rank == 0)
    assert data.train.damaged is data.val.damaged is data.damaged


def damage(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:100])
    return f"images/{path.relative_to(path.parents[2])}"


@pytest.mark.slow
def test_a_run_over_damaged_images_resumes_exactly(
    train: Train, monkeypatch: pytest.MonkeyPatch, image_root: Path
) -> None:
    names = [damage(image_root / name) for name in ("train/ant/0.jpg", "train/ant/1.jpg", "val/ant/0.jpg")]
    words = (*RUN, "data.on_error=skip", "data.num_workers=2")
    whole, half = whole_and_resumed(train, monkeypatch, words, stop_at=2)
    assert_same_state(weights(whole), weights(half))
    assert rows(whole) == rows(half)
    assert summary(whole)["num_damaged_samples"] == 3
    log = (whole / "train.log").read_text()
    for name in names:
        assert log.count(f"skipped: {name} cannot be read") == 1
    assert "named above: 3" in log


@pytest.mark.slow
def test_damaged_images_are_counted_and_logged_over_all_ranks(image_root: Path, workdir: Path) -> None:
    """Each is counted once and logged once, by rank 0, whichever rank read it."""
    names = [damage(image_root / name) for name in ("train/ant/0.jpg", "train/bee/1.jpg", "val/ant/0.jpg")]
    words = (*RUN, "data.on_error=skip", "data.num_workers=1", "parallel.num_processes=2", "name=run")
    done = run_command(*words, cwd=workdir)
    assert done.returncode == 0, done.stderr
    folder = workdir / "outputs" / "run"
    assert summary(folder)["num_damaged_samples"] == 3
    log = (folder / "train.log").read_text()
    assert [log.count(f"skipped: {name} cannot be read") for name in names] == [1, 1, 1]
    assert [(done.stdout + done.stderr).count(f"skipped: {name}") for name in names] == [1, 1, 1]


@pytest.mark.slow
def test_a_failed_run_continues_with_skip(
    train: Train, image_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = damage(image_root / "val" / "cat" / "2.jpg")
    words = (*RUN, "data.num_workers=1")
    folder = train(*words, status=1)
    last = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"error: {re.escape(name)} cannot be read: .*; repair or remove it, or "
                        r"skip it with data\.on_error=skip", last)  # fmt: skip
    assert summary(folder)["error"]["type"] == "DataError"
    train(*words, "data.on_error=skip")
    assert summary(folder)["num_damaged_samples"] == 1


def test_an_empty_class_folder_is_rejected_before_the_run(
    train: Train, image_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in (image_root / "train" / "bee").iterdir():
        path.unlink()
    folder = train(*RUN, status=2)
    assert re.match(r"error: data\.train_dir: .* classes bee", capfd.readouterr().err.splitlines()[-1])
    assert not folder.exists()
