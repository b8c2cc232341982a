"""Jobs that run at the same time on this machine."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from quick_jobs import QuickUnit, quick_units
from sweeps import LAUNCHERS
from training_runs import run_command

from hydrant.extensions import local
from hydrant.extensions.local import Local
from hydrant.runs.job import RunResult
from hydrant.sweeps.executors.base import Ended, Unit

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


def test_jobs_share_the_only_gpu_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job waits until the other one runs, so that neither ends if they run one after the other."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(local, "_visible_gpus", lambda _: {"7": "GPU-a"})
    both, seen = threading.Barrier(2), list[str]()

    def run(_: Unit, environment: Mapping[str, str], *, is_silent: bool) -> Ended:
        both.wait(timeout=10)
        seen.append(environment["CUDA_VISIBLE_DEVICES"])
        return Ended([RunResult.finished()])

    monkeypatch.setattr(QuickUnit, "run", run)
    units = quick_units(tmp_path / "study", 2, seconds=0)
    results = list(Local(num_jobs=None, jobs_per_gpu=2).run(units, lambda: None))
    assert seen == ["7", "7"]
    assert len(results) == 2
