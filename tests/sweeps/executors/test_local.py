"""Jobs that run at the same time on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import LAUNCHERS
from training_runs import run_command

MODEL = """
import os
from hydrant.models import MLP

def model(**arguments):
    with open("built", "a") as file:
        print(os.environ["CUDA_VISIBLE_DEVICES"], file=file)
    return MLP(**arguments)
"""


@pytest.mark.slow
def test_each_job_has_its_own_gpu(workdir: Path) -> None:
    (workdir / "custom.py").write_text(MODEL)
    swept = run_command(
        "-m", *LAUNCHERS["local"], "tracker=local", "duration=1", "seed=0,1,2", "allow_targets=[custom]",
        "model._target_=custom.model", cwd=workdir, CUDA_VISIBLE_DEVICES="6,7",
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    checked, *built = (workdir / "built").read_text().split()
    assert checked == "6,7"
    assert len(built) == 3
    assert set(built) == {"6", "7"}
