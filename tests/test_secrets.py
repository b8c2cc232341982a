"""What a run leaves behind holds no secret, and is for its user's eyes where the umask says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from checks import command

from hydrant import cli
from hydrant.config import differences
from hydrant.job import say
from hydrant.redaction import redacted, redacted_text
from hydrant.runs import Plan, Planned, write_plan

VARIABLES = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_PlantedPlantedPlanted",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYPLANTED",
}
GIVEN = {"url": "hunter2hunter2", "key": "given-api-key-1", "nested": "nested-token-2"}
OWN = """
from hydrant import data

def build(*, root, api_key, options, **rest):
    assert root == "https://me:hunter2hunter2@host/data" and api_key == "given-api-key-1", "the part gets them"
    assert options == {"hf_token": "nested-token-2"}
    return data.digits(**rest)
"""
WORDS = [
    "--multirun", "name=study", "seed=0", "allow_targets=[own]", "data._target_=own.build", "duration=2",
    "save_every=1", f"+data.root=https://me:{GIVEN['url']}@host/data", f"+data.api_key={GIVEN['key']}",
    f"+data.options={{hf_token: {GIVEN['nested']}}}", "tracker.mode=offline", "tracker.notes='${oc.env:HF_TOKEN}'",
    "model.hidden=[8]",
]  # fmt: skip


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | VARIABLES
    return subprocess.run(
        command(*words),
        cwd=cwd,
        env=environment,
        umask=0o077,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def assert_hidden(folder: Path, said: str) -> None:
    for secret in (*VARIABLES.values(), *GIVEN.values()):
        assert secret not in said
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
    [[], ["optimizer.lr=1e30", "log_every=1"], ["hydra/launcher=slurm", "hydra.launcher.cluster=local"]],
    ids=["whole", "failed", "submitit"],
)
def test_nothing_that_a_sweep_leaves_holds_a_secret(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
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
        assert "already finished" in run(WORDS, tmp_path).stdout  # hidden values are no others


def test_nothing_that_a_run_leaves_holds_a_secret(
    train: Callable[..., Path],
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (workdir / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(workdir)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()  # its service, which another test may have started, has its own umask
    before = os.umask(0o077)
    try:
        folder = train(*WORDS[3:])
    finally:
        os.umask(before)
    printed = capfd.readouterr()
    assert_hidden(folder, printed.out + printed.err)
    assert not [path for path in folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]


def test_nothing_that_is_said_holds_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what programs read is still JSON."""
    monkeypatch.setenv("HF_TOKEN", VARIABLES["HF_TOKEN"])
    say(f"  python train.py +tracker.tags=[{VARIABLES['HF_TOKEN']}] +data.api_key={GIVEN['key']}")
    assert capsys.readouterr().out == "  python train.py +tracker.tags=[***] +data.api_key=***\n"
    write_plan(tmp_path, Plan(0.0, [Planned(tmp_path / "job", ["+data.api_key=***"])]))
    assert cli.main(["status", str(tmp_path), "--json"]) == 0
    ((job,),) = json.loads(capsys.readouterr().out).values()
    assert job["choices"] == {"data.api_key": "***"}


@pytest.mark.parametrize(
    "text",
    [
        "class_token=true", "model.global_pool=token", "num_tokens=12", "reg_tokens: 4", "tracker.token: no such key",
        "ssh://git@host/data", "s3://bucket/data", "{token: null}", "key=optimizer.lr", "num_tokens=[1,2]",
        "secretary=x", "author=me", "authors: [a, b]", "keyboard: qwerty",
        "the bearer of a flag", "max_tokens: 4096",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://ghp_0123456789abcdefghij@host/x", "https://***@host/x"),
        ("?a=1&X-Amz-Signature=0af&token=qq", "?a=1&X-Amz-Signature=***&token=***"),
        ("my.password='a b',seed=1", "my.password=***,seed=1"),
        ("+x={user: me, my_secret: abc}", "+x={user: me, my_secret: ***}"),
        ("https://me:p@ss@host/x https://you:q@host", "https://me:***@host/x https://you:***@host"),
        ("got Authorization: Bearer abc.def-1 and", "got Authorization: Bearer *** and"),
        ("{Authorization: Basic bWU6cHc=, x: 1}", "{Authorization: *** ***, x: 1}"),
        ("Bearer abcdefgh.ijkl failed", "Bearer *** failed"),
        ("x.auth=me:abc pwd=abc bearer=abc", "x.auth=*** pwd=*** bearer=***"),
        (
            "{apiKeys: [abc, def], hfToken: abc, my_tokens: abc}",
            "{apiKeys: ***, hfToken: ***, my_tokens: ***}",
        ),
        ("+my_tokens=[abc,def]", "+my_tokens=***"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, expected: str) -> None:
    assert redacted_text(text) == expected


def test_values_of_the_environment_that_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Short ones and paths would hide what a config needs."""
    monkeypatch.setenv("MY_KEY", "imagenet"[:7])
    monkeypatch.setenv("MY_TOKEN_FILE", str(tmp_path))
    monkeypatch.setenv("KEYBOARD", "a-long-layout-name")
    monkeypatch.setenv("KEY_PREFIX", "imagenet-train")
    monkeypatch.setenv("CREDENTIALS_HELPER", "a-long-helper-name")
    text = f"imagene {tmp_path} a-long-layout-name imagenet-train a-long-helper-name"
    assert redacted_text(text) == text


def test_a_secret_that_begins_as_another_leaves_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdefgh")
    monkeypatch.setenv("B_TOKEN", "abcdefgh-the-rest")
    assert redacted_text("abcdefgh-the-rest abcdefgh") == "*** ***"


@pytest.mark.parametrize(
    "key",
    ["apiKeys", "api_keys", "hfToken", "my_tokens", "auth", "Authorization", "pwd", "bearer", "db.passwords"],
)
def test_keys_of_secrets(key: str) -> None:
    assert redacted({key: "abc"}) == {key: "***"}
    assert redacted({key: ["abc"]}) == {key: ["***"]}


def test_hidden_values_do_not_differ() -> None:
    config = {"data": {"root": "a", "token": "x1"}, "seed": 0}
    assert differences(redacted(config), redacted({**config, "data": {"root": "a", "token": "x2"}})) == {}
