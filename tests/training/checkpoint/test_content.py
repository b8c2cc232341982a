"""The content of a checkpoint is read as it was saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import names
from operations import Names
from run_folders import assert_same_state
from safetensors.torch import load_file
from training_runs import Train

from hydrant.errors import CheckpointError
from hydrant.training.checkpoint import storage as content
from hydrant.training.checkpoint.folder import Retention
from hydrant.training.checkpoint.manager import CheckpointManager
from hydrant.training.checkpoint.storage import Checkpoint, SavedCheckpoint, Snapshot

pytestmark = pytest.mark.usefixtures("process_group")


def test_a_snapshot_reuses_the_memory_of_an_earlier_one() -> None:
    """Tensors of another shape or dtype get new memory."""
    first = Snapshot.of(
        Checkpoint({"a": torch.zeros(3), "b": torch.zeros(3), "gone": torch.zeros(1)}, {}), is_rank_zero=True
    )
    tensors = {"a": torch.ones(2, 3).t()[:, 0], "b": torch.ones(4), "new": torch.ones(1)}
    second = Snapshot.of(Checkpoint(tensors, {}), is_rank_zero=True, reuse=first)
    old, new = first.parts["model"], second.parts["model"]
    assert new.keys() == tensors.keys()
    assert all(torch.equal(new[name], value) for name, value in tensors.items())
    assert new["a"].data_ptr() == old["a"].data_ptr()
    assert old["b"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("block_bytes", "num_blocks"), [(2**28, 1), (256, 12), (1, 35)])
def test_a_snapshot_allocates_few_blocks(
    block_bytes: int, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One per tensor takes a second on CUDA, where the memory is pinned."""
    monkeypatch.setattr(content, "_BLOCK_BYTES", block_bytes)
    tensors = {f"weight {n}": torch.randn(2, 8) for n in range(30)}
    tensors |= {"flag": torch.tensor(True), "none": torch.ones(0, 3), "half": torch.ones(65).bfloat16(),
                "long": torch.randn(65), "other": torch.randn(65), "turned": torch.randn(3, 2).t()}  # fmt: skip
    with Names() as names_of_operations:
        copies = Snapshot.of(Checkpoint(tensors, {}), is_rank_zero=True).parts["model"]
    blocks = {copy.untyped_storage().data_ptr() for copy in copies.values() if copy.numel()}
    assert names_of_operations.found.count("aten.empty.memory_format") == num_blocks + 1  # one is empty
    assert len(blocks) == num_blocks
    assert_same_state(copies, tensors)
    assert all(copy.is_contiguous() for copy in copies.values())


def test_a_state_is_read_as_it_was_saved(tmp_path: Path) -> None:
    state = {"betas": (0.9, 0.99), "rows": [{"$tensor": 1}, {1: None, "a": torch.tensor(2)}], "infinite": float("inf"),
             "half": torch.ones(2, 0, dtype=torch.bfloat16), "flag": torch.tensor(True), "a.b": torch.zeros(1),
             "a": {"b": torch.ones(1)}, "dtype": torch.bfloat16}  # fmt: skip
    with CheckpointManager(tmp_path, Retention(2)) as checkpoints:
        checkpoints.save(10, Checkpoint({"w": torch.ones(1)}, {"state": state}), is_best=False)
    restored = SavedCheckpoint(tmp_path / "last").read_state("state")
    assert_same_state(restored, state)
    assert isinstance(restored["betas"], tuple)
    assert restored["dtype"] is torch.bfloat16
    assert restored["half"].dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match="holds no other"):
        SavedCheckpoint(tmp_path / "last").read_state("other")


def test_a_tensor_is_read_with_the_strides_that_it_had(tmp_path: Path) -> None:
    """A tensor like its parameter follows the parameter, whose layout may be another one after a resume."""
    image = torch.randn(2, 3, 4, 5)
    last = image.contiguous(memory_format=torch.channels_last)
    square, wide = torch.randn(4, 4), torch.randn(3, 1, 4)
    state = {
        "like": last + 1, "rows": image, "columns": torch.linalg.qr(square)[0], "turned": square.t(), "flat": wide,
        "expanded": torch.ones(3, 1).expand(3, 4), "every other": torch.arange(12.0).view(4, 3)[:, ::2],
        "line": torch.ones(5)[::2], "one": torch.ones(5, 1).as_strided((5, 1), (1, 5)),
    }  # fmt: skip
    owners: dict[str, torch.Tensor | None] = {"state.like": last, "state.rows": last}
    with CheckpointManager(tmp_path, Retention(2)) as checkpoints:
        checkpoints.save(10, Checkpoint({}, {"state": state}, owner=owners.get), is_best=False)
    restored = SavedCheckpoint(tmp_path / "last").read_state("state", owners.get)
    assert_same_state(restored, state)
    for name in ("like", "rows", "columns", "turned", "flat", "one"):
        assert restored[name].stride() == state[name].stride(), name
    assert restored["expanded"].is_contiguous()
    assert (
        SavedCheckpoint(tmp_path / "last")
        .read_state("state", {"state.like": image}.get)["like"]
        .is_contiguous()
    )


def _change_strides(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((path / "training.json").read_text())
    change(content)
    (path / "training.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "strides", [[0, 0], [10**15, 1], [-1, 3], [3], ["a", 1], 3, None, {"a": 1}, [10**30, 1]], ids=str
)
def test_strides_that_no_tensor_has_are_refused(strides: Any, tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, Retention(2)) as checkpoints:
        checkpoints.save(10, Checkpoint({}, {"state": {"columns": torch.randn(3, 3).t()}}), is_best=False)
    _change_strides(tmp_path / "last", lambda content: content["strides"].update({"state.columns": strides}))
    with pytest.raises(CheckpointError, match=r"training\.(json|safetensors) cannot be read"):
        SavedCheckpoint(tmp_path / "last").read_state("state")


@pytest.mark.extension
def test_a_checkpoint_can_be_read_without_hydrant(train: Train) -> None:
    path = (
        train("tracker=local", "duration=2", "optimizer=timm", "optimizer.name=lookahead_adamw")
        / "checkpoints"
    )
    assert names(path / "last") == [
        "manifest.json", "model.safetensors", "training.json", "training.safetensors"
    ]  # fmt: skip
    assert {key.split(".")[0] for key in load_file(path / "last" / "model.safetensors")} == {
        "hidden",
        "classifier",
    }
    groups = SavedCheckpoint(path / "last").plain_state("optimization")["optimizers"]["main"]["param_groups"]
    assert groups[0]["params"][0] == "model.hidden.0.0.weight"
    modes = {file.stat().st_mode & 0o777 for file in (path / "last").iterdir()}
    assert len(modes) == 1  # all files have the same permissions
