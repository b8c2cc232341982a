"""A start reads each file of its run folder once, before it trains."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from environments import forked

from hydrant import cli
from hydrant.training.compilation import Compilation

WORDS = ("train", "name=run", "tracker=local", "model.hidden=[4]", "save_every=2", "keep_last=1",
         "resume_strict=false")  # fmt: skip


def test_a_start_reads_each_file_once(workdir: Path) -> None:
    """The audit hook sees what the start opens to read, and which folders it lists."""
    reads, root = Counter[str](), workdir / "outputs" / "run"

    def count(event: str, arguments: Any) -> None:
        is_read = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (is_read or event == "os.listdir") and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.relpath(os.fsdecode(arguments[0]), root)
            reads[path] += not path.startswith("..")

    def start() -> int:
        sys.addaudithook(count)  # it cannot be removed, so this is a process of its own
        for duration in (2, 3):
            if duration == 3:  # the start ends when the run is restored
                Compilation.begin = lambda *_: sys.exit(9)
            reads.clear()
            cli.main([*WORDS, f"duration={duration}"])
            Path(f"reads-{duration}").write_text(json.dumps({p: n for p, n in reads.items() if n}))
        return 0

    assert cli.main([*WORDS, "duration=2"]) == 0
    ended = forked(start)
    assert ended.status == 0, ended.output
    finished, continued = (json.loads(Path(f"reads-{duration}").read_text()) for duration in (2, 3))
    checkpoint, once = "checkpoints/update_00000002", {"config.yaml": 1, "summary.json": 1}
    assert {name: finished.get(name, 0) for name in (*once, "metrics.jsonl")} == once | {"metrics.jsonl": 0}
    assert not [path for path in finished if path.startswith(checkpoint)]
    assert {name: continued[name] for name in once} == once
    # The SHA-256 of each file is compared first. The folder reads manifests, to know which checkpoints were the best.
    assert continued[f"{checkpoint}/training.json"] == 2
    assert continued[f"{checkpoint}/manifest.json"] <= 4
