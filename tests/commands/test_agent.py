"""`hydrant agent` trains the runs of a W&B sweep, made by the real `wandb sweep` and handed out by the real SDK."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from marks import slow
from repository import ROOT
from training_runs import run_command
from wandb_rows import without_sdk_keys
from wandb_server import WandbServer
from wandb_sweeps import ReceivedSweep

from hydrant import cli
from hydrant.commands.agent import _interrupted_runs
from hydrant.config.compose import compose
from hydrant.runs.folder import RunFolder
from hydrant.runs.rows import read_metrics

FILES = sorted((ROOT / "conf" / "wandb_sweep").glob("*.yaml"))
SHORT = ["duration=6", "log_every=1", "eval_every=3", "save_every=2", "model.hidden=[16]"]
LONG = [*SHORT[1:], "duration=200000"]

Sweep = Callable[..., str]


@pytest.fixture
def sweep(wandb_server: WandbServer, workdir: Path) -> Sweep:
    """Return a function that makes a sweep from a file with `wandb sweep` and returns its path."""

    def make(file: Path) -> str:
        command = [
            sys.executable,
            "-m",
            "wandb",
            "sweep",
            "--entity",
            "tester",
            "--project",
            "study",
            str(file),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert "Run sweep agent with" in done.stderr
        return f"tester/study/{list(wandb_server.sweeps.by_id)[-1]}"

    return make


def file_of(folder: Path, parameters: Mapping[str, Any]) -> Path:
    """Write the grid of conf/wandb_sweep with other parameters."""
    file = folder / "sweep.yaml"
    config = yaml.safe_load((ROOT / "conf" / "wandb_sweep" / "grid.yaml").read_text())
    file.write_text(yaml.safe_dump(config | {"parameters": parameters}))
    return file


def once(condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Call `act` in a thread as soon as `condition` holds."""

    def wait() -> None:
        end = time.monotonic() + 300
        while not condition() and time.monotonic() < end:
            time.sleep(0.1)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def processes(word: str) -> list[int]:
    """Return the processes that have a word on their command line."""
    files = [path for path in Path("/proc").glob("[0-9]*/cmdline") if word.encode() in path.read_bytes()]
    return [int(path.parent.name) for path in files]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_parameters_of_the_ready_sweeps_are_config_keys(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    overrides = list[str]()
    for key, parameter in content["parameters"].items():
        [first, *_] = parameter.get("values", [parameter.get("value", parameter.get("min"))])
        overrides.append(f"{key}={first}")
    compose(overrides)
    assert content["metric"] == {"name": "val/accuracy", "goal": "maximize"}
    assert content["command"] == ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]


@slow  # for the import of W&B's launcher
def test_the_words_of_wandb_s_own_agent_are_overrides() -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    values = {"optimizer": "sgd", "optimizer.lr": 1e-05, "model.hidden": [8, 4], "cudnn_benchmark": True}
    made = create_sweep_command_args({"args": {key: {"value": value} for key, value in values.items()}})
    config = compose(made["args_no_hyphens"])
    assert (config.optimizer.lr, config.model.hidden, config.cudnn_benchmark) == (1e-05, [8, 4], True)
    assert config.optimizer._target_.endswith("SGD")


def test_an_unknown_sweep_is_refused(wandb_server: WandbServer, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in {
        ("study",): "SWEEP: 'study' is not a sweep; write ENTITY/PROJECT/SWEEP",
        ("tester/study/s", "--count", "0"): "--count: needs 1 or more, not 0",
        ("tester/study/s", "seed"): "'seed' has no value",
        (
            "tester/study/s",
        ): "SWEEP: tester/study/s cannot be joined (Sweep tester/study/s not found); `wandb sweep FILE`",
    }.items():
        assert cli.main(["agent", *words]) == 2
        assert f"error: {message}" in capsys.readouterr().err


def test_an_agent_resumes_no_run_of_another_machine(tmp_path: Path) -> None:
    runs: dict[str, dict[str, str]] = {
        "elsewhere": {"status": "running", "host": "node7"},
        "killed": {"status": "running", "host": platform.node()},
        "stopped": {"status": "preempted", "host": "node7"},
        "whole": {"status": "finished"},
    }
    for name, summary in runs.items():
        (tmp_path / name / ".hydra").mkdir(parents=True)
        (tmp_path / name / "summary.json").write_text(json.dumps({"num_updates": 0, **summary}))
    assert [folder.name for folder in _interrupted_runs(tmp_path)] == ["killed", "stopped"]


@pytest.fixture
def planted(wandb_server: WandbServer, workdir: Path) -> ReceivedSweep:
    """A sweep without runs on the server."""
    sweep = ReceivedSweep("sweep0", "study", {"program": "train.py"}, [])
    wandb_server.sweeps.by_id[sweep.sweep_id] = sweep
    return sweep


def a_run(run_id: Any, **values: Any) -> dict[str, Any]:
    return {"type": "run", "run_id": run_id, "args": {key: {"value": value} for key, value in values.items()}}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (a_run("run0", seed=0, allow_targets="[torch]"), "allow_targets: is no hyperparameter"),
        (
            a_run("run0", **{"+hydra.job.env_set.LD_PRELOAD": "x.so"}),
            "+hydra.job.env_set.LD_PRELOAD: is not a key",
        ),
        *slow((a_run("run0", **{"hydra.run.dir": "elsewhere"}), "hydra.run.dir: is no hyperparameter")),
        (
            a_run("../../../elsewhere", seed=0),
            "SWEEP: W&B sent '../../../elsewhere', which is not the id of a run",
        ),
        *slow(
            (a_run("", seed=0), "SWEEP: W&B sent '', which is not the id of a run"),
            (a_run(["x"], seed=0), "SWEEP: W&B sent"),
        ),
    ],
    ids=["consent", "variables", "folder", "path as id", "no id", "list as id"],
)
def test_a_sweep_that_would_do_more_than_set_hyperparameters_is_refused(
    command: dict[str, Any],
    message: str,
    planted: ReceivedSweep,
    workdir: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    planted.commands = [command]
    assert cli.main(["agent", "tester/study/sweep0"]) == 2
    assert f"error: {message}" in capfd.readouterr().err
    assert not [path for path in workdir.iterdir() if path.name in ("outputs", "elsewhere")]


@pytest.mark.parametrize(
    "word", ["allow_targets=[torch]", "hydra.searchpath=[theirs]", "--config-dir=theirs"]
)
def test_the_folder_of_an_interrupted_run_does_not_consent(
    word: str, planted: ReceivedSweep, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = workdir / "outputs" / "sweep0" / "run0"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(["seed=0", word]))
    (folder / "summary.json").write_text('{"status": "preempted", "num_updates": 0}')
    assert cli.main(["agent", "tester/study/sweep0"]) == 2
    assert "is recorded in a run folder, which cannot consent to it" in capfd.readouterr().err


def test_an_agent_ignores_what_is_no_command(
    planted: ReceivedSweep, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.commands.agent._HEARTBEAT_SECONDS", 0.0)
    noise = a_run("run0")
    planted.noise = [None, 5, "x", [None], [[]], [{}], [noise | {"args": 5}], [noise | {"args": {"a": 1}}]]
    assert cli.main(["agent", "tester/study/sweep0"]) == 0
    assert not planted.noise
    assert "nothing was run" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_wandb_sweep_accepts_the_ready_sweeps(file: Path, sweep: Sweep, wandb_server: WandbServer) -> None:
    sweep(file)
    assert wandb_server.sweeps.only_sweep().config == yaml.safe_load(file.read_text())


@pytest.mark.slow
def test_runs_of_a_sweep_equal_direct_runs_on_two_ranks(
    sweep: Sweep, wandb_server: WandbServer, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = sweep(file_of(workdir, {"optimizer": {"values": ["sgd"]}, "optimizer.lr": {"value": 0.001}}))
    extra = [*SHORT, "parallel.num_processes=2"]
    assert cli.main(["agent", path, *extra]) == 0
    assert "outputs/sweep0: 1 finished" in capfd.readouterr().out
    swept = wandb_server.only_run()
    assert (swept.sweep, swept.run_id, swept.state) == ("sweep0", "sweep0-run0", "finished")
    assert swept.name == "optimizer.lr-0.001_optimizer-sgd"

    words = ["optimizer=sgd", "optimizer.lr=0.001", "tracker.project=study", *extra]
    assert run_command("name=direct", *words, cwd=workdir).returncode == 0
    direct = next(run for run in wandb_server.runs.values() if run.name == "direct")
    assert direct.sweep is None
    own_keys = {"name", "overrides", "tracker.name", "tracker.project"}
    assert swept.config.keys() == direct.config.keys()
    assert {key for key in swept.config if swept.config[key] != direct.config[key]} <= own_keys
    losses = [[row["train/loss"] for row in run.history if "train/loss" in row] for run in (swept, direct)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    assert (
        cli.main(["compare", "wandb:tester/study?sweep=sweep0", "outputs/direct", "--by", "optimizer"]) == 0
    )
    assert "2 runs: 2 finished" in capfd.readouterr().out


@pytest.mark.slow
def test_an_agent_reports_failed_and_killed_runs_and_trains_the_others(
    sweep: Sweep, wandb_server: WandbServer, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = sweep(file_of(workdir, {"seed": {"values": [0, 1, 2]}, "optimizer.lr": {"value": 1e30}}))
    folder = workdir / "outputs" / "sweep0"
    assert cli.main(["agent", path, "--count", "1", *SHORT]) == 1
    assert "run sweep0-run0: failed (exit status 1), see outputs/sweep0/sweep0-run0" in capfd.readouterr().out
    wandb_server.sweeps.only_sweep().points = [{"seed": 3, "duration": 200000}, {"seed": 4, "duration": 4}]
    first = "hydra.run.dir=outputs/sweep0/sweep0-run1"
    killer = once(
        lambda: (folder / "sweep0-run1" / "metrics.jsonl").exists(),
        lambda: [os.kill(pid, signal.SIGKILL) for pid in processes(first)],
    )
    assert cli.main(["agent", path, *SHORT]) == 1
    killer.join()
    output = capfd.readouterr().out
    assert "run sweep0-run1: failed (killed by SIGKILL, usually because" in output
    assert "run sweep0-run2: finished" in output
    assert "outputs/sweep0: 1 failed, 1 finished" in output
    assert RunFolder(folder / "sweep0-run1").error.startswith("killed by SIGKILL, usually because")


@pytest.mark.slow
def test_a_stopped_agent_resumes_its_run(
    sweep: Sweep, wandb_server: WandbServer, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = sweep(file_of(workdir, {"seed": {"values": [0]}, "duration": {"value": 1500}}))
    run, others = workdir / "outputs" / "sweep0" / "sweep0-run0", SHORT[1:]
    started = once(
        lambda: (run / "checkpoints" / "last").exists(), lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    assert cli.main(["agent", path, *others]) == 143
    started.join()
    assert "run sweep0-run0: interrupted, see outputs/sweep0/sweep0-run0" in capfd.readouterr().out
    assert RunFolder(run).status == "preempted"
    received = wandb_server.runs["study", "sweep0-run0"]
    assert received.state == "preempted"

    assert cli.main(["agent", path, *others]) == 0
    assert "run sweep0-run0: finished" in capfd.readouterr().out
    assert len(wandb_server.runs) == 1
    assert received.state == "finished"
    losses = [row["num_updates"] for row in read_metrics(run) if "train/loss" in row]
    assert losses == list(range(1, 1501))
    assert len(without_sdk_keys(received.history)) >= len(losses)


@pytest.mark.slow
def test_wandb_can_stop_a_run(
    sweep: Sweep, wandb_server: WandbServer, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = sweep(file_of(workdir, {"seed": {"values": [0]}}))
    run, known = workdir / "outputs" / "sweep0" / "sweep0-run0", wandb_server.sweeps.only_sweep()
    stopper = once(
        lambda: (run / "metrics.jsonl").exists(),
        lambda: known.commands.append({"type": "stop", "run_id": run.name}),
    )
    assert cli.main(["agent", path, *LONG]) == 0
    stopper.join()
    assert "outputs/sweep0: 1 stopped by W&B" in capfd.readouterr().out
    assert wandb_server.runs["study", run.name].state == "failed", "no agent resumes it"
    assert cli.main(["agent", path, *LONG]) == 0
    assert "nothing was run" in capfd.readouterr().out
