"""Damaged checkpoints are detected and malicious ones run no code."""

import contextlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import change_last_bit, save

from hydrant.errors import CheckpointError
from hydrant.training.checkpoint import storage
from hydrant.training.checkpoint.folder import find_checkpoint, find_damage, newest_undamaged
from hydrant.training.checkpoint.storage import SavedCheckpoint
from hydrant.training.checkpoint.weights import Weights

pytestmark = pytest.mark.usefixtures("process_group")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"has \d+ bytes instead of"),
        (change_last_bit, "does not have the SHA-256"),
        (Path.unlink, "cannot be read"),
    ],
)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.safetensors", "training.json", "manifest.json"]
)
def test_damage_is_named_and_the_checkpoint_before_is_used(
    name: str,
    damage: Callable[[Path], None],
    message: str,
    tmp_path: Path,
    logged_warnings: Callable[[], list[str]],
) -> None:
    if name == "manifest.json":
        message = r"cannot be read \("
        damage = damage if damage is Path.unlink else lambda file: file.write_text("{")
    run, path = tmp_path / "run", tmp_path / "run" / "checkpoints"
    save(path, 10, 20)
    assert find_damage(path / "update_00000020") == ""
    damage(path / "update_00000020" / name)
    assert newest_undamaged(path) == find_checkpoint(run, "resume") == path / "update_00000010"
    lines = logged_warnings()
    assert lines
    assert all(name in line and "update_00000010 is the newest" in line for line in lines)
    refusal = rf"update_00000020/{name} {message}.*; remove .*update_00000020 to use"
    with pytest.raises(CheckpointError, match=refusal):
        find_checkpoint(path / "last", "resume")
    change_last_bit(path / "update_00000010" / "model.safetensors")
    refusal = rf"are damaged: .*_00000020/{name} {message}.*; .*_00000010/model"
    with pytest.raises(CheckpointError, match=refusal):
        newest_undamaged(path)
    save(path, 20)  # replaces the damaged one
    assert newest_undamaged(path) == path / "update_00000020"


class Malicious:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("harmed"),)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.safetensors", "training.json", "manifest.json"]
)
def test_a_malicious_checkpoint_runs_no_code(name: str, workdir: Path) -> None:
    """Each file of a checkpoint, and the files that DCP would read, are replaced by a pickle that runs code."""
    save(workdir / "checkpoints", 10)
    path = workdir / "checkpoints" / "update_00000010"
    malicious = pickle.dumps(Malicious())
    pickle.loads(malicious)
    assert Path("harmed").exists()  # the pickle works
    Path("harmed").unlink()
    for file in (path / ".metadata", path / "__0_0.distcp", path / name):
        file.write_bytes(malicious)
    if name != "manifest.json":  # an attacker can write a manifest
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["files"][name] = storage.seal(path / name)
        (path / "manifest.json").write_text(json.dumps(manifest))
    readers: dict[str, Callable[[], Any]] = {
        "manifest.json": lambda: find_checkpoint(path, "resume"),
        "model.safetensors": lambda: Weights(path).read("init_from"),
        "training.safetensors": lambda: SavedCheckpoint(path).read_state("sums"),
        "training.json": lambda: SavedCheckpoint(path).plain_state("state"),
    }
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read \("):
        readers[name]()
    for read in readers.values():
        with contextlib.suppress(CheckpointError):
            read()
    assert not Path("harmed").exists()


def test_a_manifest_with_a_path_outside_its_folder_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 10)
    manifest = tmp_path / "update_00000010" / "manifest.json"
    saved = json.loads(manifest.read_text())
    for name in ("../../secret", "/etc/passwd", "a\0b"):
        forged = saved | {"files": {name: {"size": 1, "sha256": ""}}}
        manifest.write_text(json.dumps(forged))
        assert "manifest.json cannot be read" in find_damage(tmp_path / "update_00000010")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('{"files": {}}', "Object missing required field `num_updates`"),
        ('{"num_updates": 10, "is_best": false, "files": {}}', "names no training.json"),
        (
            '{"num_updates": 10, "is_best": false, "files": []}',
            "Expected `object`, got `array` - at `$.files`",
        ),
        ('{"num_updates": 1e400, "is_best": false, "files": {}}', "Number out of range"),
        ('{"num_updates": "10", "is_best": false, "files": {}}', "Expected `int`, got `str`"),
        ('{"num_updates": -1, "is_best": false, "files": {}}', "Expected `int` >= 0"),
        (f'{{"num_updates": {10**30}, "is_best": false, "files": {{}}}}', f"Expected `int` <= {10**18 - 1}"),
        (
            '{"num_updates": 10, "is_best": true, "files": {"a": {"size": 1e400, "sha256": ""}}}',
            "Number out of range",
        ),
        (
            '{"num_updates": 10, "is_best": true, "files": {"a": {"size": true, "sha256": ""}}}',
            "Expected `int`, got `bool`",
        ),
        (
            '{"num_updates": 10, "is_best": true, "rows": {"metrics.jsonl": -1}, "files": {}}',
            "Expected `int` >= 0",
        ),
        ('{"num_updates": 10, "files": {"\\ud800": {}}}', "JSON is malformed"),
        ("[" * 100_000, "nested too deep"),
        ("null", "Expected `object`, got `null`"),
    ],
)
def test_a_forged_manifest_is_damaged(change: str, message: str, tmp_path: Path) -> None:
    save(tmp_path, 10)
    (tmp_path / "update_00000010" / "manifest.json").write_text(change)
    assert message in find_damage(tmp_path / "update_00000010")


def test_a_renamed_checkpoint_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    (tmp_path / "update_00000010").rename(tmp_path / "update_00000030")
    assert "was renamed: its manifest is that of update_00000010" in find_damage(tmp_path / "update_00000030")
    assert newest_undamaged(tmp_path) == tmp_path / "update_00000020"
