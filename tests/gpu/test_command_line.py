"""`tests/support/gpu/run`: a command with GPUs of the stub."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

RUN = ROOT / "tests" / "support" / "gpu" / "run"

SHOW = """
import torch
x = torch.ones(3, device="cuda:1")
print(torch.cuda.device_count(), torch.cuda.mem_get_info(1)[1] / 2**30, (x + x).tolist())
"""


@pytest.mark.slow
def test_runs_a_command_with_gpus(tmp_path: Path) -> None:
    options = ["--devices", "2", "--memory-gib", "1", "--trace", str(tmp_path / "calls")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GPU_STUB", "LD_"))}
    command = [sys.executable, RUN, *options, sys.executable, "-c", SHOW]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2 1.0 [2.0, 2.0, 2.0]\n"
    kinds = [line.split("\t")[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert {"allocate", "launch", "copy", "wait"} <= set(kinds)
