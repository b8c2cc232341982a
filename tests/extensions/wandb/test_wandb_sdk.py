"""What the W&B SDK and Hydrant change in this process ends with the run or the command. With the real SDK."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from marks import slow
from processes import modules_after
from wandb_rows import SUMMARY, Make, Warnings, kill_core, log_rows

from hydrant import cli
from hydrant.extensions.wandb import sdk as wandb_sdk
from hydrant.extensions.wandb.tracker import WandbTracker
from hydrant.trackers import RunIdentity

pytestmark = pytest.mark.usefixtures("wandb_server")

SESSION = {"WANDB_ERROR_REPORTING": "false", "WANDB_QUIET": "true", "WANDB_SILENT": "true"}


def process_state() -> tuple[Any, ...]:
    """Return the hooks and the W&B variables of this process."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    return sys.exit, sys.excepthook, variables


def core_started_but_no_run(**_: object) -> NoReturn:
    import wandb

    wandb.setup().ensure_service()
    raise OSError("no space left on device")


@pytest.mark.parametrize("mode", ["online", "offline", "disabled"])
def test_a_finished_run_leaves_process_unchanged(mode: str, identity: RunIdentity, make_wandb: Make) -> None:
    state = process_state()
    for _ in range(2):  # the second run uses the wandb-core that the first one started
        tracker = make_wandb(identity, mode=mode)
        assert SESSION.items() <= os.environ.items() or mode == "disabled"
        log_rows(tracker)
        tracker.finish(0, SUMMARY)
        assert process_state() == state
    assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit


def test_the_last_of_several_runs_leaves_the_process_unchanged(
    identity: RunIdentity, make_wandb: Make, tmp_path: Path
) -> None:
    state = process_state()
    first, second = (make_wandb(replace(identity, folder=tmp_path / name)) for name in "ab")
    first.finish(0, SUMMARY)
    assert SESSION.items() <= os.environ.items()
    second.finish(0, SUMMARY)
    assert process_state() == state


def test_a_run_that_cannot_start_leaves_the_process_unchanged(
    identity: RunIdentity, make_wandb: Make, monkeypatch: pytest.MonkeyPatch, logged_warnings: Warnings
) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", core_started_but_no_run)
    state = process_state()
    tracker = make_wandb(identity)
    assert process_state() == state
    assert tracker.describe()["mode"] == "failed"
    assert "no run could be started (no space left on device)" in logged_warnings()[0]
    tracker.finish(1, {})
    assert process_state() == state


def test_a_run_that_falls_back_to_offline_leaves_the_process_unchanged(
    identity: RunIdentity, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failed online start and its offline start each start a wandb-core, which each set hooks."""
    import wandb

    init = wandb.init

    def fail_online(*, mode: str, **arguments: Any) -> wandb.Run:
        return core_started_but_no_run() if mode == "online" else init(mode=mode, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(wandb, "init", fail_online)
    state = process_state()
    tracker = make_wandb(identity)
    assert tracker.describe()["mode"] == "offline"
    tracker.finish(0, SUMMARY)
    assert process_state() == state


@pytest.mark.usefixtures("reap")
def test_the_death_of_wandb_core_leaves_process_unchanged(identity: RunIdentity, make_wandb: Make) -> None:
    state = process_state()
    tracker = make_wandb(identity)
    kill_core(9)
    tracker.finish(0, SUMMARY)
    assert process_state() == state


@pytest.mark.parametrize("name", [*SESSION, "WANDB_SERVICE"])
def test_variables_of_the_user_keep_their_values(
    name: str, identity: RunIdentity, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "3-1-unix-/nonexistent/socket" if name == "WANDB_SERVICE" else "True"
    monkeypatch.setenv(name, value)
    tracker = make_wandb(identity)
    assert os.environ.get(name) == (None if name == "WANDB_SERVICE" else value)
    tracker.finish(0, SUMMARY)
    assert os.environ[name] == value


def test_hooks_from_before_a_run_survive_it(
    identity: RunIdentity, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a W&B run that is not Hydrant's, and those of other libraries."""
    import wandb
    from wandb.sdk.lib.exit_hooks import ExitHooks

    monkeypatch.setattr(sys, "exit", sys.exit)  # set back what this test changes
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    ExitHooks().hook()
    state = process_state()
    make_wandb(identity).finish(0, SUMMARY)
    assert process_state() == state

    wandb.teardown()
    sys.exit, sys.excepthook = lambda *_: exit(*_), lambda *_: None  # type: ignore[assignment]
    state = process_state()
    make_wandb(identity).finish(0, SUMMARY)
    assert process_state() == state


def test_hooks_set_during_a_run_survive_it(
    identity: RunIdentity, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    tracker = make_wandb(identity)
    sys.exit, sys.excepthook = lambda *_: exit(*_), lambda *_: None  # type: ignore[assignment]
    state = process_state()[:2]
    tracker.finish(0, SUMMARY)
    assert process_state()[:2] == state


@pytest.mark.parametrize("words", [["compare", "wandb:tester/study"], *slow((["sync", "."],))])
def test_a_command_leaves_the_process_unchanged(
    words: list[str], identity: RunIdentity, make_wandb: Make,
    workdir: Path, monkeypatch: pytest.MonkeyPatch, end_wandb: Callable[[], None],
) -> None:  # fmt: skip
    tracker = make_wandb(identity, project="study", mode="offline" if words[0] == "sync" else "online")
    log_rows(tracker)
    tracker.finish(0, SUMMARY)
    end_wandb()  # the command starts a wandb-core
    state = process_state()
    assert cli.main([*words, *(["--metric", "train/loss"] if words[0] == "compare" else [])]) == 0
    assert process_state() == state


@pytest.mark.parametrize("mode", ["online", "offline", "disabled"])
def test_a_run_uses_what_was_started_while_it_was_prepared(
    mode: str, identity: RunIdentity, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    state, setup = process_state(), wandb.setup
    asked, started = list[float](), list[str]()
    monkeypatch.setattr(wandb_sdk, "access_problem", asked.append)
    monkeypatch.setattr(wandb, "setup", lambda: started.append(threading.current_thread().name) or setup())
    with WandbTracker.warmed_up({"mode": mode, "probe_timeout": 60.0}):
        tracker = make_wandb(identity, mode=mode)
        assert started[:1] == ["hydrant-wandb"] * (mode != "disabled")
    assert tracker.describe()["mode"] == mode
    assert asked == [60.0] * (mode == "online")
    log_rows(tracker)
    tracker.finish(0, SUMMARY)
    assert process_state() == state


@pytest.mark.usefixtures("wandb_home")
def test_a_run_that_is_refused_ends_what_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    state, ended, teardown = process_state(), list[str](), wandb.teardown
    monkeypatch.setattr(wandb, "teardown", lambda: ended.append("core") or teardown())
    with pytest.raises(ValueError, match="no data"), WandbTracker.warmed_up({"mode": "offline"}):
        raise ValueError("no data")
    assert process_state() == state
    assert ended == ["core"]


@pytest.mark.slow
@pytest.mark.usefixtures("wandb_home", "workdir")
def test_the_start_of_a_run_does_not_import_requests_and_launch() -> None:
    """They take long. If W&B renames the module or the method that imports one, this test says so."""
    code = (
        "import wandb; from hydrant.extensions.wandb.sdk import turn_off_extras\n"
        "turn_off_extras()\n"
        "run = wandb.init(mode='offline', settings=wandb.Settings(silent=True))\n"
        "run.finish()"
    )
    assert not modules_after(code) & {"requests", "wandb.sdk.launch"}


@pytest.mark.slow
def test_a_wandb_core_that_cannot_start_ends_the_warm_up() -> None:
    code = """from wandb.sdk.lib.service import service_process
service_process.get_core_path = lambda: "/bin/false"
from hydrant.extensions.wandb.tracker import WandbTracker
for mode in ("online", "offline"):
    with WandbTracker.warmed_up({"mode": mode, "probe_timeout": 9.0}):
        pass"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
