"""A start reads each file of its run folder once, before it trains."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import collections, json, os, sys

reads, root = collections.Counter(), os.path.join(os.getcwd(), "outputs", "run")

def count(event, arguments):
    if event == "open" and not (arguments[2] & (os.O_WRONLY | os.O_RDWR)) or event == "os.listdir":
        if isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.path.relpath(os.path.abspath(os.fsdecode(arguments[0])), root)
            reads[path] += not path.startswith("..")

from hydrant import cli
import hydrant.runs.session

words = sys.argv[1:]
assert cli.main([*words, "duration=2"]) == 0
sys.addaudithook(count)  # it cannot be removed, so this is a process of its own
for more, stops in ((["duration=2"], False), (["duration=3"], True)):
    if stops:  # when the run is restored
        hydrant.runs.session.try_compiled = lambda trainer: sys.exit(9)
    reads.clear()
    cli.main([*words, *more])
    print(json.dumps({path: number for path, number in reads.items() if number}))
"""
WORDS = (
    "train",
    "name=run",
    "tracker=local",
    "model.hidden=[4]",
    "save_every=2",
    "keep_last=1",
    "resume_strict=false",
)


def test_a_start_reads_each_file_once(tmp_path: Path) -> None:
    """The audit hook sees what the start opens to read, and which folders it lists."""
    command = [sys.executable, "-c", PROGRAM, *WORDS]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    finished, continued = (json.loads(line) for line in result.stdout.splitlines() if line.startswith("{"))
    checkpoint = "checkpoints/update_00000002"
    assert {name: finished.get(name, 0) for name in ("config.yaml", "summary.json", "metrics.jsonl")} == {
        "config.yaml": 1,
        "summary.json": 1,
        "metrics.jsonl": 0,
    }
    assert not [path for path in finished if path.startswith(checkpoint)]
    assert {name: continued[name] for name in ("config.yaml", "summary.json")} == {
        "config.yaml": 1,
        "summary.json": 1,
    }
    # The SHA-256 of each file is compared first. The folder reads manifests, to know which checkpoints were the best.
    assert continued[f"{checkpoint}/training.json"] == 2
    assert continued[f"{checkpoint}/manifest.json"] <= 4
