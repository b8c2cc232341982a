"""The files and the output of a run contain no secrets, and the files respect the umask."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from marks import of_extension
from sweeps import LAUNCHERS
from training_runs import Train, UserModule, command

from hydrant import cli
from hydrant.records import PlannedJob, SweepPlan
from hydrant.sweeps.plan import write_plan
from hydrant.terminal.console import say

VARIABLES = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_PlantedPlantedPlanted",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYPLANTED",
}
GIVEN_SECRETS = {"url": "hunter2hunter2", "key": "given-api-key-1", "nested": "nested-token-2"}
CUSTOM_DATA = """
from hydrant import data

def build(*, root, api_key, options, **rest):
    assert root == "https://me:hunter2hunter2@host/data" and api_key == "given-api-key-1", "the part gets them"
    assert options == {"hf_token": "nested-token-2"}
    return data.digits(**rest)
"""
WORDS = [
    "--multirun", "name=study", "seed=0", "allow_targets=[custom]", "data._target_=custom.build", "duration=2",
    "save_every=1", f"+data.root=https://me:{GIVEN_SECRETS['url']}@host/data", f"+data.api_key={GIVEN_SECRETS['key']}",
    f"+data.options={{hf_token: {GIVEN_SECRETS['nested']}}}", "tracker.mode=offline",
    "tracker.notes='${oc.env:HF_TOKEN}'", "model.hidden=[8]",
]  # fmt: skip


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | VARIABLES
    how: Any = {"env": environment, "umask": 0o077, "timeout": 200, "check": False}
    return subprocess.run(command(*words), cwd=cwd, capture_output=True, text=True, **how)


def assert_hidden(folder: Path, output: str) -> None:
    """Assert that neither the files in a folder nor the printed output contain a secret."""
    for secret in (*VARIABLES.values(), *GIVEN_SECRETS.values()):
        assert secret not in output
        for path in folder.rglob("*"):
            assert secret not in str(path)
            assert path.is_dir() or secret.encode() not in path.read_bytes(), path
    config = next(path for path in (folder / "config.yaml", *folder.glob("*/config.yaml")) if path.exists())
    saved = yaml.safe_load(config.read_text())
    assert saved["data"]["root"] == "https://me:***@host/data"
    assert (
        saved["data"]["api_key"] == saved["tracker"]["notes"] == saved["data"]["options"]["hf_token"] == "***"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["optimizer.lr=1e30", "log_every=1"],
        *of_extension(*([*LAUNCHERS[name]] for name in {"submitit_local"} & {*LAUNCHERS})),
    ],
)
def test_the_files_of_a_sweep_contain_no_secret(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "custom.py").write_text(CUSTOM_DATA)
    done = run([*WORDS, *words], tmp_path)
    assert done.returncode == ("optimizer.lr=1e30" in words), done.stderr
    folder = tmp_path / "multirun" / "study"
    names = {path.name for path in folder.rglob("*")}
    assert {"config.yaml", "summary.json", "train.log", "multirun.yaml", "sweep.csv", "debug.log"} <= names
    assert any(name.endswith(".wandb") for name in names)
    assert_hidden(folder, done.stdout + done.stderr)
    for path in (folder, *folder.rglob("*")):
        assert path.is_symlink() or path.stat().st_mode & 0o077 == 0, path
    if not words:
        assert "already finished" in run(WORDS, tmp_path).stdout  # hidden values count as equal


@pytest.mark.extension
def test_the_files_of_a_run_contain_no_secret(
    train: Train, user_module: UserModule, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    user_module("custom", CUSTOM_DATA)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()  # another test may have started its service with another umask
    umask = os.umask(0o077)
    try:
        folder = train(*WORDS[3:])
    finally:
        os.umask(umask)
    printed = capfd.readouterr()
    assert_hidden(folder, printed.out + printed.err)
    assert not [path for path in folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]


def test_printed_text_contains_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON for programs stays valid."""
    monkeypatch.setenv("HF_TOKEN", VARIABLES["HF_TOKEN"])
    say(f"  python train.py +tracker.tags=[{VARIABLES['HF_TOKEN']}] +data.api_key={GIVEN_SECRETS['key']}")
    assert capsys.readouterr().out == "  python train.py +tracker.tags=[***] +data.api_key=***\n"
    write_plan(tmp_path, SweepPlan(0.0, [PlannedJob("job", ["+data.api_key=***"])]))
    assert cli.main(["status", str(tmp_path), "--json"]) == 0
    ((job,),) = json.loads(capsys.readouterr().out)["folders"].values()
    assert job["choices"] == {"data.api_key": "***"}
