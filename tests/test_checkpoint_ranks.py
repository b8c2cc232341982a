"""What is saved on some ranks is restored on others, bit for bit: two real gloo processes with FSDP2, and one plain."""

from __future__ import annotations

from pathlib import Path

from checks import assert_same_state
from ranks import two_one_two

from hydrant.checkpoint import Weights


def test_two_ranks_one_rank_two_ranks(tmp_path: Path) -> None:
    found = two_one_two(tmp_path)
    assert_same_state(found["on one"], found["saved"])
    assert_same_state(found["restored"], found["saved"])
    assert_same_state(found["restored and trained on"], found["trained on"])
    assert found["meter"]["weight"] == 3 * 8 * 2  # what both ranks had seen
    assert [meter["weight"] for meter in found["meters"]] == [3 * 8 * 2, 0]
    assert {path.name for path in (tmp_path / "two" / "update_00000003").iterdir()} == {
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "training-00001-of-00002.safetensors",
        "training-00002-of-00002.safetensors", "training.json", "manifest.json",
    }  # fmt: skip
    for plain in ("one/update_00000003", "replicated/update_00000000"):
        names = {path.name for path in (tmp_path / plain).iterdir()}
        assert names == {"model.safetensors", "training.safetensors", "training.json", "manifest.json"}
    assert_same_state(Weights(tmp_path / "two" / "update_00000003").read(""), found["saved"]["model"])
