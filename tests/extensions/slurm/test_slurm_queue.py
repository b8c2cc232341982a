"""The jobs in SLURM's queue, where squeue may be missing or fail."""

import json
import os
from pathlib import Path

import pytest

from hydrant import cli
from hydrant.extensions.slurm import CannotStop, Slurm, queued
from hydrant.records import SweepPlan
from hydrant.sweeps.plan import write_plan


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "squeue cannot be called (No such file or directory)"),
        ("printf 'no\ncontroller' >&2; exit 3", "squeue ended with 3: no controller"),
        ("exit 3", "squeue ended with 3"),
    ],
)
def test_it_is_said_once_why_the_queue_is_not_known(
    script: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if script is not None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Slurm.cancel(tmp_path / "no_sweep_of_slurm") == []
    assert capsys.readouterr().err == ""
    assert (queued(), queued()) == (None, None)
    assert capsys.readouterr().err == f"warning: {reason}, so it is not known which SLURM jobs wait or run\n"
    (tmp_path / ".submitit").mkdir()
    with pytest.raises(CannotStop):  # it is not idle
        Slurm.cancel(tmp_path)


def test_slurm_cancels_the_jobs_of_the_sweep_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep whose process has ended. A summary names another job, which the queue knows as one of another sweep."""
    sweep, tools = tmp_path / "sweep", tmp_path / "bin"
    runs = [sweep / f"seed-{n}" for n in range(2)]
    for run, number in zip(runs, ("12_1", "99"), strict=True):
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("seed: 0\n")
        content = {"status": "running", "host": "node17", "environment": {"slurm_job": number}}
        (run / "summary.json").write_text(json.dumps(content | {"num_updates": 3}))
    tools.mkdir()
    (sweep / ".submitit").mkdir()
    write_plan(sweep, SweepPlan(0.0, [], queues=["hydrant.extensions.slurm.Slurm"]))
    queue = f"12_0 {sweep}/.submitit/a.sh\n12_1 {sweep}/.submitit/a.sh\n99 {tmp_path}/mine/.submitit/b.sh\n7 (null)"
    for name, script in {
        "squeue": f"printf '%s\\n' '{queue}'",
        "scancel": f'echo "$@" >> {tools}/cancelled',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    answers = list[str]()
    for folder, status in ((runs[1], 1), (runs[0], 0), (sweep, 0)):
        assert cli.main(["stop", str(folder)]) == status
        answers.append("".join(capsys.readouterr()))
    assert "runs on node17" in answers[0]
    assert "cancelled SLURM job 12_1; the same command continues" in answers[1]
    assert "cancelled SLURM job 12_0, SLURM job 12_1;" in answers[2]
    assert (tools / "cancelled").read_text() == "12_1\n12_0 12_1\n"
    (runs[1] / "summary.json").write_text((runs[0] / "summary.json").read_text())  # both train in one job
    assert cli.main(["stop", str(runs[0])]) == 2
    assert "seed-0 is one of 2 runs that train in one SLURM job" in capsys.readouterr().err
    assert (tools / "cancelled").read_text() == "12_1\n12_0 12_1\n"
