"""The state of a run in a checkpoint: what is forged is named, with its file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoints import save

from hydrant.errors import CheckpointError
from hydrant.training.checkpoint.storage import SavedCheckpoint
from hydrant.training.distributed.world import World
from hydrant.training.saved_run import check_optimizers, restore_outside_model, saved_state
from hydrant.training.trainer import TrainState

BEST = {"metric": "val/accuracy", "value": 0.5, "num_updates": 4}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    with World.from_launcher().process_group():
        save(tmp_path, 10)
    return tmp_path / "update_00000010"


def with_state(checkpoint: Path, state: Any) -> Path:
    (checkpoint / "training.json").write_text(json.dumps({"state": state}))
    return checkpoint


def test_a_state_is_read(checkpoint: Path) -> None:
    state = {"num_updates": 10, "best": BEST, "num_skipped": 3, "micro_batch_size": 8, "is_pruned": True}
    assert saved_state(SavedCheckpoint(with_state(checkpoint, state))) == TrainState(**state)
    # Of an earlier version.
    assert saved_state(SavedCheckpoint(with_state(checkpoint, {"num_updates": 10}))) == TrainState(10)


@pytest.mark.parametrize(
    "forged",
    [
        {"num_updates": -10}, {"num_updates": "10"}, {"num_updates": 9}, {"num_updates": 10**30},
        {"num_updates": 10.0}, {"num_updates": None}, {"num_updates": {"$tensor": "w"}}, {"extra": 1},
        {"num_skipped": -1}, {"num_skipped_in_a_row": "x"}, {"is_pruned": "no"}, {"micro_batch_size": 0},
        {"micro_batch_size": ""}, {"micro_batch_size": [8]}, {"best": 3}, {"best": []}, {"best": {}},
        {"best": BEST | {"value": "x"}}, {"best": BEST | {"num_updates": 11}}, {"best": BEST | {"metric": None}},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_forged_state_is_refused(forged: dict[str, Any], checkpoint: Path) -> None:
    message = r"training\.json (does not fit this run|holds an impossible state of a run)"
    with pytest.raises(CheckpointError, match=message):
        saved_state(SavedCheckpoint(with_state(checkpoint, {"num_updates": 10} | forged)))


@pytest.mark.parametrize("state", [None, [], "x", 5, {}])
def test_a_state_that_is_none_is_refused(state: Any, checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"training\.json"):
        saved_state(SavedCheckpoint(with_state(checkpoint, state)))


@pytest.mark.parametrize(
    "forged", [None, [], "x", {}, {"optimizers": 3}, {"optimizers": {"main": 1}}], ids=json.dumps
)
def test_forged_optimizers_are_refused(forged: Any, checkpoint: Path) -> None:
    (checkpoint / "training.json").write_text(json.dumps({"optimization": forged}))
    entries: Any = SimpleNamespace(entries={"main": SimpleNamespace(optimizer=None)})
    with pytest.raises(CheckpointError, match="does not fit this run"):
        check_optimizers(SavedCheckpoint(checkpoint), torch.nn.Linear(1, 1), entries)


@pytest.mark.parametrize(
    "forged",
    [None, [], "x", {"weight": 1}, {"weight": {"$tensor": "sums"}}, {"weight": {"$dtype": "save"}}],
    ids=json.dumps,
)
def test_a_forged_task_is_refused(forged: Any, checkpoint: Path) -> None:
    (checkpoint / "training.json").write_text(json.dumps({"task": forged, "strides": {}}))
    with pytest.raises(CheckpointError, match=r"does not fit this run|training\.json cannot be read"):
        restore_outside_model(torch.nn.Linear(1, 1), SavedCheckpoint(checkpoint))
