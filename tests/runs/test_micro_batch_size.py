"""A continued run keeps the micro-batch size that its folder records."""

from pathlib import Path

import pytest
import torch

from hydrant.runs.execute import resolve_micro_batch_size
from hydrant.runs.folder import CONFIG, RunFolder, checkpoints_of
from hydrant.runs.resume import Start
from hydrant.training.checkpoint.storage import SavedCheckpoint
from hydrant.training.distributed.world import World


@pytest.mark.parametrize(("saved", "size"), [("micro_batch_size: 12", 12), ("seed: 0", None)])
def test_a_run_that_continues_keeps_its_size(saved: str, size: int | None, tmp_path: Path) -> None:
    """Without a recorded size, as in a config of another version, all samples of a rank are one micro-batch."""
    (tmp_path / CONFIG).write_text(f"{saved}\n")
    start = Start(RunFolder(tmp_path), SavedCheckpoint(checkpoints_of(tmp_path) / "update_00000001"))
    world = World(0, 0, 1, torch.device("cpu"))
    resolved = resolve_micro_batch_size({"micro_batch_size": "auto"}, start, world)
    assert resolved == {"micro_batch_size": size}
