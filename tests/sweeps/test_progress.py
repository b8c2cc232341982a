"""The progress of a sweep's runs, read from folders that other processes write."""

import os
from pathlib import Path

import pytest
from run_states import sweep_in_all_states

from hydrant.records import PlannedJob, SweepPlan
from hydrant.runs import lock
from hydrant.runs.lock import shared, this_machine
from hydrant.sweeps.plan import sweep_progress, usable_plan, write_plan
from hydrant.sweeps.sweep import RunningSweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return sweep_in_all_states(tmp_path)


def test_jobs_are_queued_while_a_process_holds_the_sweep(sweep: Path) -> None:
    """Two sweeps may share a folder: when the first one ends, the jobs of the other are still queued."""
    with shared(sweep):
        with shared(sweep):
            pass
        assert "queued" in {run.state for run in sweep_progress(sweep)}
    assert "queued" not in {run.state for run in sweep_progress(sweep)}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", b"[]"),
        ("summary.json", b'{"status": "\xff"}'),
        (".hydra/overrides.yaml", b"- 'seed"),
        (".hydra/overrides.yaml", b"seed: 0"),
    ],
)
def test_a_damaged_file_affects_only_its_run(sweep: Path, file: str, content: bytes) -> None:
    path = sweep / "finished" / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    damaged, *others = sweep_progress(sweep)
    assert (damaged.state, damaged.choices["model"]) == ("damaged", "finished")
    assert f"{file} is damaged" in damaged.message
    assert "damaged" not in {run.state for run in others}


def test_damaged_rows_are_skipped(sweep: Path) -> None:
    with (sweep / "killed" / "metrics.jsonl").open("wb") as file:
        file.write(b'{"train/loss": 1}\n[]\n\xff\n{"num_updates": 30, "train/loss": 2}\n')
    (killed,) = (run for run in sweep_progress(sweep) if run.state == "killed" and run.run == "killed")
    assert (killed.num_updates, killed.loss) == (30, 2)


def test_a_pipe_instead_of_the_rows_is_not_waited_for(sweep: Path) -> None:
    metrics = sweep / "killed" / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    os.mkfifo(metrics)
    (killed,) = (run for run in sweep_progress(sweep) if run.run == "killed")
    assert (killed.state, killed.loss) == ("killed", None)


def test_the_jobs_of_a_killed_command_are_not_queued_beside_one_that_lives(tmp_path: Path) -> None:
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    here = this_machine()
    pids = {
        "mine": (os.getpid(), here),
        "killed": (ended, here),
        "elsewhere": (ended, "x"),
        "old": (None, ""),
    }
    jobs = [
        PlannedJob(name, [f"seed={n}"], pid=pid, machine=machine)
        for n, (name, (pid, machine)) in enumerate(pids.items())
    ]
    write_plan(tmp_path, SweepPlan(1.0, jobs))
    with shared(tmp_path):
        states = {run.run: run.state for run in sweep_progress(tmp_path)}
    assert states == {"mine": "queued", "killed": "not started", "elsewhere": "queued", "old": "queued"}
    write_plan(tmp_path, SweepPlan(1.0, jobs, queues=["my_package.Queue"]))
    with shared(tmp_path):
        assert [run.state for run in sweep_progress(tmp_path)][1] == "queued", "a queue may start it"
    write_plan(tmp_path, SweepPlan(1.0, jobs))
    (tmp_path / "sweep.json").write_text((tmp_path / "sweep.json").read_text().replace(str(ended), "9" * 17))
    with shared(tmp_path):
        assert [run.state for run in sweep_progress(tmp_path)][1] == "not started"


def test_a_job_stays_queued_if_its_command_may_be_in_another_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is found that works at the sweep, and the number of one in another container says nothing here."""
    monkeypatch.setattr(lock, "_PROC", tmp_path / "no_proc")
    write_plan(tmp_path, SweepPlan(1.0, [PlannedJob("job", [], pid=2**22 + 1, machine=this_machine())]))
    with shared(tmp_path):
        assert [run.state for run in sweep_progress(tmp_path)] == ["queued"]


def test_a_sweep_names_itself_as_the_command_of_its_jobs(tmp_path: Path) -> None:
    with shared(tmp_path), RunningSweep(tmp_path).active({tmp_path / "job": ["seed=0"]}):
        [job] = usable_plan(tmp_path)[0].jobs
    assert (job.pid, job.machine) == (os.getpid(), this_machine())
