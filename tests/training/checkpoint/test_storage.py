"""A checkpoint of two ranks (gloo, FSDP2) is restored on one rank, and one of one rank on two, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import reshard_and_return
from run_folders import assert_same_state, summary
from training_runs import run_command

from hydrant.training.checkpoint import storage
from hydrant.training.checkpoint.weights import Weights
from hydrant.training.distributed.world import World
from hydrant.training.metrics import merge_meters


def test_a_checkpoint_of_two_ranks_is_restored_on_one_and_on_two_again(tmp_path: Path) -> None:
    states = reshard_and_return(tmp_path)
    assert_same_state(states["on one"], states["saved"])
    assert_same_state(states["restored"], states["saved"])
    assert_same_state(states["restored and continued"], states["continued"])
    one, other = states["saved meters"]
    both = merge_meters([one, other])
    assert both["sums"] == 8 * (one["pending"].sum() + other["pending"].sum()) > 0
    assert both["weight"] == 3 * 8 * 2
    assert_same_state(states["meter"], both)  # on one rank: the sum of both
    first, second = states["restored meters"]
    assert_same_state(first, both)  # counted once
    assert second["weight"] == 0
    assert {path.name for path in (tmp_path / "two" / "update_00000003").iterdir()} == {
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "training-00001-of-00002.safetensors",
        "training-00002-of-00002.safetensors", "training.json", "manifest.json",
    }  # fmt: skip
    for plain in ("one/update_00000003", "replicated/update_00000000"):
        names = {path.name for path in (tmp_path / plain).iterdir()}
        assert names == {"model.safetensors", "training.safetensors", "training.json", "manifest.json"}
    assert_same_state(Weights(tmp_path / "two" / "update_00000003").read(""), states["saved"]["model"])


BROKEN = """
import os, time
from pathlib import Path
from hydrant.training.checkpoint import manager
from hydrant.models import MLP

write, leave = manager.storage.write, manager.CheckpointManager.__exit__

def fail(*arguments):
    try:
        write(*arguments)
    finally:
        time.sleep(3 * int(os.environ["RANK"]))  # rank 1 learns of it long after rank 0
        raise ZeroDivisionError("a bug")

def record(checkpoints, kind, *rest):
    Path(f"ended_{os.environ['RANK']}").write_text(kind.__name__)
    return leave(checkpoints, kind, *rest)

manager.storage.write, manager.CheckpointManager.__exit__ = fail, record
"""


@pytest.mark.slow
def test_a_failure_in_the_background_ends_all_ranks_after_the_same_update(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    done = run_command(
        "name=run", "tracker=local", "allow_targets=[broken]", "model._target_=broken.MLP", "model.hidden=[4]",
        "parallel.num_processes=2", "duration=100000", "eval_every=null", "save_every=20", "log_every=20", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "update_00000020 cannot be written: ZeroDivisionError: a bug" in done.stderr.splitlines()[-1]
    assert [(tmp_path / f"ended_{rank}").read_text() for rank in (0, 1)] == ["CheckpointError"] * 2
    assert summary(tmp_path / "outputs" / "run")["status"] == "failed"


def test_one_rank_writes_the_files_that_dcp_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "model": {"weight": torch.randn(3, 2), "bias": torch.randn(3).bfloat16()},
        "ema": {},
        "training": {"optimizers.0.step": torch.tensor(3.0), "empty": torch.empty(0, 4)},
    }

    def write(folder: Path) -> dict[str, bytes]:
        published = list[str]()
        group = dist.group.WORLD
        assert group is not None
        texts, notes = {"training.json": "{}"}, {"num_updates": 7}
        storage.write(folder, parts, texts, notes, lambda: published.append("once"), group)
        assert published == ["once"]
        return {file.name: file.read_bytes() for file in folder.iterdir()}

    def by_dcp(parts: Any, writer: Any) -> None:
        dcp.save(parts, storage_writer=writer, process_group=dist.group.WORLD)

    with World.from_launcher().process_group():
        alone = write(tmp_path / "checkpoints" / "alone")
        monkeypatch.setattr(storage, "_write_alone", by_dcp)
        assert alone == write(tmp_path / "checkpoints" / "by_dcp")
    assert set(alone) == {"model.safetensors", "training.safetensors", "training.json", "manifest.json"}
