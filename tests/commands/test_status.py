"""`hydrant status` shows the states of runs from their folders alone."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from marks import of_extension
from processes import modules_after
from run_states import sweep_in_all_states

from hydrant import cli
from hydrant.runs.lock import exclusive, shared
from hydrant.sweeps.plan import usable_plan
from hydrant.sweeps.sweep import RunningSweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return sweep_in_all_states(tmp_path)


def status_text(sweep: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert cli.main(["status", str(sweep), *flags]) == 0
    return capsys.readouterr().out


def test_the_states_of_a_running_sweep(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shared(sweep), exclusive(sweep / "running"):
        [runs] = json.loads(status_text(sweep, capsys, "--json"))["folders"].values()
    by_name = {run["choices"]["model"]: run for run in runs}
    assert {name: run["state"] for name, run in by_name.items()} == {name: name for name in by_name} | {
        "before": "queued", "waiting": "queued"
    }  # fmt: skip
    messages = {name: run["message"] for name, run in by_name.items() if run["message"]}
    assert messages == {"failed": "loss became NaN", "before": "failed before", "refused": "no GPU"}
    running = by_name["running"]
    assert (running["num_updates"], running["loss"], running["seconds_left"]) == (16, 1.4, 24 / 5)
    assert by_name["killed"]["seconds_left"] is None
    assert (by_name["finished"]["best"], by_name["finished"]["best_num_updates"]) == (0.9, 30)


def test_a_program_gets_the_urgent_runs_of_many_and_how_many_there_are(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(10):
        shutil.copytree(sweep / "finished", sweep / f"seed-{seed}")
    short = json.loads(status_text(sweep, capsys, "--json"))
    whole = json.loads(status_text(sweep, capsys, "--json", "--all"))
    assert short["states"] == whole["states"]
    [counts], [listed], [runs] = (
        list(part.values()) for part in (short["states"], short["folders"], whole["folders"])
    )
    assert (sum(counts.values()), counts["finished"], len(runs)) == (18, 11, 18)
    calm = ("finished", "not started")
    assert [run for run in runs if run["state"] not in calm] == [
        run for run in listed if run["state"] not in calm
    ]
    assert len(listed) == 10


def test_no_run_of_a_killed_sweep_is_queued_or_running(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = status_text(sweep, capsys).splitlines()
    assert lines[0].endswith(
        "8 runs: 1 finished, 2 failed, 2 killed, 1 not started, 1 refused, 1 running elsewhere"
    )
    assert lines[3].split() == ["running", "killed", "16/40", "1.400"]


def test_a_folder_of_sweeps_shows_all_of_them(
    sweep: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For an unknown name, only sweeps are suggested."""
    for name in ("lr_study", "2025-01-01/10-00-00"):
        shutil.copytree(sweep, workdir / "multirun" / name, ignore=shutil.ignore_patterns("multirun", "src"))
    (workdir / "src").mkdir()
    assert cli.main(["status", "multirun", "--json"]) == 0
    sweeps = json.loads(capsys.readouterr().out)["folders"]
    assert list(sweeps) == ["multirun/2025-01-01/10-00-00", "multirun/lr_study"]
    assert cli.main(["status", "multirum"]) == 2
    error = capsys.readouterr().err
    assert "'multirum' is not a folder; did you mean 'multirun'?" in error
    assert "src" not in error
    assert cli.main(["status", "src"]) == 2
    assert "no runs in src" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "evaluate", *of_extension("compare", "export")])
def test_the_newest_folders_are_named_if_none_is_given(
    command: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [Path("outputs", "first"), Path("multirun", "study"), Path("outputs", "2025-01-01", "last")]
    for age, folder in enumerate(reversed(folders)):
        (folder / "seed-0").mkdir(parents=True)
        (folder / "config.yaml").touch()
        os.utime(folder, (time.time() - 100 * age,) * 2)
    (sweep := Path("multirun", "older")).mkdir()
    (sweep / "sweep.json").touch()
    os.utime(sweep, (0, 0))
    rest = ", multirun/older" if command in ("status", "compare") else ""
    assert cli.main([command]) == 2
    message = f"hydrant {command} outputs/2025-01-01/last. Others here: multirun/study, outputs/first{rest}\n"
    assert capsys.readouterr().err.endswith(message)


def test_a_sweep_that_is_stopped_says_what_is_left(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sweep / "killed" / "summary.json").write_text('{"status": "preempted", "num_updates": 20}')
    jobs = {sweep / job.run: job.overrides for job in usable_plan(sweep)[0].jobs}
    stopped = RunningSweep(sweep)
    with stopped.active(jobs):
        pass
    stopped.answer.stop_status = 143
    stopped.close()
    assert capsys.readouterr().out.splitlines()[-1] == (
        "stopped: 1 finished, 1 saved, 2 not started, 1 killed, 1 running elsewhere, 2 failed; "
        "the same command continues the sweep"
    )
    stopped.answer.stop_status = 0
    stopped.close()
    assert "stopped:" not in capsys.readouterr().out


def test_status_imports_no_torch(sweep: Path) -> None:
    code = f"from hydrant import cli; assert cli.main(['status', {str(sweep)!r}]) == 0"
    assert "torch" not in modules_after(code)


def test_text_of_others_does_not_control_the_terminal(
    sweep: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of folders and messages are shown with escapes, in tables, notices and errors."""
    escapes = "\x1b]0;title\x07\x1b[2J\x9b\u202e"
    shutil.copytree(sweep, workdir / escapes)
    summary = {
        "status": "failed",
        "num_updates": 0,
        "error": {"type": "OSError", "message": f"full{escapes}"},
    }
    (workdir / escapes / "failed" / "summary.json").write_text(json.dumps(summary))
    (workdir / escapes / "sweep.json").write_text("{")
    for run in ("failed", escapes):
        (workdir / escapes / run / ".hydra").mkdir(parents=True)
    assert cli.main(["status", escapes]) == 0
    assert cli.main(["status", f"{escapes}/nothing"]) == 2
    printed = capsys.readouterr()
    for text in printed:
        assert r"\x1b]0;title\x07\x1b[2J\x9b\u202e" in text
        assert not set(escapes) & {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
    assert r"full\x1b]0;" in printed.out


def test_a_damaged_plan_hides_no_run(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sweep / "sweep.json").write_text('{"began": 0, "jobs": [1]}')
    (sweep / "finished" / ".hydra").mkdir()
    assert cli.main(["status", str(sweep)]) == 0
    printed = capsys.readouterr()
    assert "1 finished" in printed.out
    assert "sweep.json is damaged (Expected `object`, got `int` - at `$.jobs[0]`)" in printed.err


@pytest.mark.parametrize(("command", "runs"), [("status", "8 runs: "), *of_extension(("log", ""))])
def test_links_to_themselves_hide_no_run(
    command: str, runs: str, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("link", "waiting"):  # a stranger's, and in place of the folder of a job
        (sweep / name).symlink_to(sweep / name)
    assert cli.main([command, str(sweep)]) == 0
    assert f"{runs}1 finished" in capsys.readouterr().out
