"""W&B's own `wandb sweep` and `wandb agent` train the sweeps of src/hydrant/extensions/wandb/conf/wandb_sweep."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from marks import slow
from repository import conf_files
from training_runs import run_command
from wandb_server import WandbServer

from hydrant import cli
from hydrant.config.compose import compose
from hydrant.extensions.wandb.tracker import WandbTracker
from hydrant.trackers import RunIdentity

FILES = list(conf_files("wandb_sweep/*.yaml").values())
SHORT = ["duration=6", "log_every=1", "eval_every=3", "save_every=2", "model.hidden=[16]"]


def wandb(*words: str) -> str:
    """Run W&B's command line with this environment's programs; return what it says."""
    command = [sys.executable, "-m", "wandb", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_parameters_of_the_ready_sweeps_are_config_keys(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", f"wandb_sweep={file.stem}"]) == 0
    assert "\nmethod: " in capsys.readouterr().out
    content = yaml.safe_load(file.read_text())
    overrides = list[str]()
    for key, parameter in content["parameters"].items():
        [first, *_] = parameter.get("values", [parameter.get("value", parameter.get("min"))])
        overrides.append(f"{key}={first}")
    compose(overrides)
    assert content["metric"] == {"name": "val/accuracy", "goal": "maximize"}
    assert content["command"] == yaml.safe_load(FILES[0].read_text())["command"]


@slow  # for the import of W&B's launcher
def test_the_words_of_wandb_s_own_agent_are_overrides() -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    values = {"optimizer": "sgd", "optimizer.lr": 1e-05, "model.hidden": [8, 4], "cudnn_benchmark": True}
    made = create_sweep_command_args({"args": {key: {"value": value} for key, value in values.items()}})
    config = compose(made["args_no_hyphens"])
    assert (config.optimizer.lr, config.model.hidden, config.cudnn_benchmark) == (1e-05, [8, 4], True)
    assert config.optimizer._target_.endswith("SGD")


@pytest.mark.parametrize(
    ("in_sweep", "status", "state"),
    [(True, 143, "failed"), (True, 130, "preempted"), (False, 143, "preempted")],
)
def test_a_run_that_wandb_stops_is_not_handed_out_again(
    in_sweep: bool,
    status: int,
    state: str,
    wandb_server: WandbServer,
    identity: RunIdentity,
    make_wandb: Callable[..., WandbTracker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """W&B hands out preempted runs, and stops a run by SIGTERM."""
    if in_sweep:
        monkeypatch.setenv("WANDB_SWEEP_ID", "sweep0")
        monkeypatch.setenv("WANDB_RUN_ID", "sweep0-run0")
    tracker = make_wandb(identity)
    tracker.finish(status, {})
    assert wandb_server.only_run().state == state


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_runs_of_a_sweep_equal_direct_runs(
    file: Path,
    wandb_server: WandbServer,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    sweep = yaml.safe_load(file.read_text())
    (workdir / "sweep.yaml").write_text(yaml.safe_dump({**sweep, "command": [*sweep["command"], *SHORT]}))
    assert "Run sweep agent with" in wandb("sweep", "--entity", "tester", "--project", "study", "sweep.yaml")
    [values, *_] = wandb_server.sweeps.only_sweep().points
    wandb("agent", "--forward-signals", "--count", "1", "tester/study/sweep0")
    swept = wandb_server.only_run()
    assert (swept.sweep, swept.run_id, swept.state) == ("sweep0", "sweep0-run0", "finished")
    assert (workdir / "outputs" / "sweep0" / "sweep0-run0" / "summary.json").exists()

    words = [*(f"{key}={value}" for key, value in values.items()), "tracker.project=study", *SHORT]
    assert run_command("name=direct", *words, cwd=workdir).returncode == 0
    direct = next(run for run in wandb_server.runs.values() if run.name == "direct")
    assert direct.sweep is None
    assert swept.config.keys() == direct.config.keys()
    differing = {key for key in swept.config if swept.config[key] != direct.config[key]}
    assert differing <= {"name", "overrides", "tracker.project"}
    losses = [[row["train/loss"] for row in run.history if "train/loss" in row] for run in (swept, direct)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    assert cli.main(["compare", "wandb:tester/study?sweep=sweep0", "outputs/direct", "--by", "seed"]) == 0
    assert "2 runs: 2 finished" in capfd.readouterr().out
