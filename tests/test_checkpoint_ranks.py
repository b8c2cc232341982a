"""What is saved on some ranks is restored on others, bit for bit: two real gloo processes with FSDP2, and one plain."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import assert_same_state, run_command, summary
from ranks import two_one_two

from hydrant.checkpoint import Weights
from hydrant.metrics import merged


def test_two_ranks_one_rank_two_ranks(tmp_path: Path) -> None:
    found = two_one_two(tmp_path)
    assert_same_state(found["on one"], found["saved"])
    assert_same_state(found["restored"], found["saved"])
    assert_same_state(found["restored and trained on"], found["trained on"])
    own, other = found["saved meters"]
    both = merged([own, other])
    assert both["sums"] == 8 * (own["pending"].sum() + other["pending"].sum()) > 0
    assert both["weight"] == 3 * 8 * 2
    assert_same_state(found["meter"], both)  # on one rank: what both had seen
    first, second = found["restored meters"]
    assert_same_state(first, both)  # counted once
    assert second["weight"] == 0
    assert {path.name for path in (tmp_path / "two" / "update_00000003").iterdir()} == {
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "training-00001-of-00002.safetensors",
        "training-00002-of-00002.safetensors", "training.json", "manifest.json",
    }  # fmt: skip
    for plain in ("one/update_00000003", "replicated/update_00000000"):
        names = {path.name for path in (tmp_path / plain).iterdir()}
        assert names == {"model.safetensors", "training.safetensors", "training.json", "manifest.json"}
    assert_same_state(Weights(tmp_path / "two" / "update_00000003").read(""), found["saved"]["model"])


BROKEN = """
import os, time
from pathlib import Path
from hydrant.checkpoint import saving
from hydrant.models import MLP

write, leave = saving.storage.write, saving.Checkpoints.__exit__

def failing(*arguments):
    try:
        write(*arguments)
    finally:
        time.sleep(3 * int(os.environ["RANK"]))  # rank 1 learns of it when rank 0 has gone on for long
        raise ZeroDivisionError("a bug")

def told(checkpoints, kind, *rest):
    Path(f"ended_{os.environ['RANK']}").write_text(kind.__name__)
    return leave(checkpoints, kind, *rest)

saving.storage.write, saving.Checkpoints.__exit__ = failing, told
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
