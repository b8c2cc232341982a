"""`hydrant agent` trains what a W&B sweep hands out. The real `wandb sweep` makes the sweeps, the real SDK is asked."""

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
from checks import run_command

from hydrant import cli
from hydrant.agent import _interrupted
from hydrant.config import compose
from hydrant.runs import read_run
from hydrant.trackers.record import read_metrics

from .wandb_rows import own
from .wandb_server import WandbServer

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "conf" / "wandb_sweep").glob("*.yaml"))
SHORT = ["duration=6", "log_every=1", "eval_every=3", "save_every=2", "model.hidden=[16]"]
LONG = [*SHORT[1:], "duration=200000"]

Sweep = Callable[..., str]


@pytest.fixture
def sweep(wandb_server: WandbServer, workdir: Path) -> Sweep:
    """Make a sweep of a file by `wandb sweep`; its path."""

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
        return f"tester/study/{list(wandb_server.sweeps.known)[-1]}"

    return make


def file_of(folder: Path, parameters: Mapping[str, Any]) -> Path:
    """The grid of conf/wandb_sweep over other parameters."""
    file = folder / "sweep.yaml"
    config = yaml.safe_load((ROOT / "conf" / "wandb_sweep" / "grid.yaml").read_text())
    file.write_text(yaml.safe_dump(config | {"parameters": parameters}))
    return file


def once(condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Do something, in a thread, as soon as something holds."""

    def wait() -> None:
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.1)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def processes(word: str) -> list[int]:
    """Who has been started with a word on the command line."""
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if word.encode() in path.read_bytes()]
    return [int(path.parent.name) for path in found]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_parameters_of_the_files_are_keys_of_a_config(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    firsts = {
        k: own.get("values", [own.get("value", own.get("min"))])[0]
        for k, own in content["parameters"].items()
    }
    compose([f"{key}={value}" for key, value in firsts.items()])
    assert content["metric"] == {"name": "val/accuracy", "goal": "maximize"}
    assert content["command"] == ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]


def test_what_is_no_sweep_is_said(wandb_server: WandbServer, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in {
        ("study",): "SWEEP: 'study' is no sweep; write ENTITY/PROJECT/SWEEP",
        ("tester/study/s", "--count", "0"): "--count: 0 runs cannot be made",
        ("tester/study/s", "seed"): "'seed' gives no value",
        (
            "tester/study/s",
        ): "SWEEP: tester/study/s cannot be joined (Sweep tester/study/s not found); `wandb sweep FILE`",
    }.items():
        assert cli.main(["agent", *words]) == 2
        assert f"error: {told}" in capsys.readouterr().err


def test_an_agent_leaves_to_other_machines_what_they_train(tmp_path: Path) -> None:
    runs: dict[str, dict[str, str]] = {
        "elsewhere": {"status": "running", "host": "node7"},
        "killed": {"status": "running", "host": platform.node()},
        "stopped": {"status": "preempted", "host": "node7"},
        "whole": {"status": "finished"},
    }
    for name, told in runs.items():
        (tmp_path / name / ".hydra").mkdir(parents=True)
        (tmp_path / name / "summary.json").write_text(json.dumps(told))
    assert [folder.name for folder in _interrupted(tmp_path)] == ["killed", "stopped"]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_wandb_sweep_takes_the_files(file: Path, sweep: Sweep, wandb_server: WandbServer) -> None:
    sweep(file)
    assert wandb_server.sweeps.only_sweep().config == yaml.safe_load(file.read_text())


@pytest.mark.slow
def test_runs_of_a_sweep_have_the_config_of_direct_runs_also_on_two_ranks(
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
def test_runs_that_fail_or_die_are_told_and_the_others_go_on(
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
    told = capfd.readouterr().out
    assert "run sweep0-run1: failed (killed by SIGKILL)" in told
    assert "run sweep0-run2: finished" in told
    assert "outputs/sweep0: 1 failed, 1 finished" in told
    assert read_run(folder / "sweep0-run1").error == "killed by SIGKILL"


@pytest.mark.slow
def test_an_agent_that_is_stopped_goes_on_with_its_run(
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
    assert read_run(run).status == "preempted"
    received = wandb_server.runs["study", "sweep0-run0"]
    assert received.state == "preempted"

    assert cli.main(["agent", path, *others]) == 0
    assert "run sweep0-run0: finished" in capfd.readouterr().out
    assert len(wandb_server.runs) == 1
    assert received.state == "finished"
    losses = [row["num_updates"] for row in read_metrics(run) if "train/loss" in row]
    assert losses == list(range(1, 1501))
    assert len(own(received.history)) >= len(losses)


@pytest.mark.slow
def test_wandb_can_stop_a_run(
    sweep: Sweep, wandb_server: WandbServer, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = sweep(file_of(workdir, {"seed": {"values": [0]}}))
    run, known = workdir / "outputs" / "sweep0" / "sweep0-run0", wandb_server.sweeps.only_sweep()
    stopper = once(
        lambda: (run / "metrics.jsonl").exists(),
        lambda: known.told.append({"type": "stop", "run_id": run.name}),
    )
    assert cli.main(["agent", path, *LONG]) == 0
    stopper.join()
    assert "outputs/sweep0: 1 stopped by W&B" in capfd.readouterr().out
    assert wandb_server.runs["study", run.name].state == "failed", "nobody is to take it up again"
    assert cli.main(["agent", path, *LONG]) == 0
    assert "nothing was run" in capfd.readouterr().out
