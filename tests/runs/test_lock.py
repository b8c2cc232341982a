"""Locks on the folders of runs and sweeps."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from processes import wait_for_row
from training_runs import command, run_command

from hydrant.errors import ConfigError
from hydrant.runs.lock import exclusive, is_held, is_in_use, shared

WORDS = (
    "tracker=local",
    "duration=20000",
    "log_every=7",
    "eval_every=50",
    "save_every=10",
    "model.hidden=[32]",
)


def test_a_fork_does_not_hold_the_run_folder(tmp_path: Path) -> None:
    """A worker that outlives its killed run must not block the next run."""
    with exclusive(tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        with pytest.raises(ConfigError, match="another process is at work"), exclusive(tmp_path):
            pass
    try:
        time.sleep(0.1)
        with exclusive(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_is_shared_or_exclusive(tmp_path: Path) -> None:
    with shared(tmp_path):
        with shared(tmp_path):
            pass
        assert is_in_use(tmp_path)
        with pytest.raises(ConfigError, match="another process"), exclusive(tmp_path):
            pass
    with exclusive(tmp_path), pytest.raises(ConfigError, match="another process"), shared(tmp_path):
        pass
    assert not is_in_use(tmp_path)


def test_probes_do_not_prevent_a_lock(tmp_path: Path) -> None:
    """Two threads probe the folder without a pause while it is locked again and again."""
    is_over, probes = threading.Event(), list[bool]()

    def probe() -> None:
        while not is_over.is_set():
            probes.append(is_held(tmp_path))

    threads = [threading.Thread(target=probe) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with exclusive(tmp_path):
                assert is_held(tmp_path)
        with exclusive(tmp_path), pytest.raises(ConfigError, match="another process"), exclusive(tmp_path):
            pass
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not is_held(tmp_path)
    assert not is_held(tmp_path / "none")


@pytest.mark.slow
def test_two_processes_never_share_a_run_folder(workdir: Path) -> None:
    first = subprocess.Popen(command(*WORDS, "name=shared"), cwd=workdir)
    wait_for_row(workdir / "outputs" / "shared", 7, first)
    second = run_command(*WORDS, "name=shared", cwd=workdir)
    first.kill()
    first.wait()
    assert second.returncode == 2
    assert "name: another process is at work in" in second.stderr.splitlines()[-1]
    third = run_command(*WORDS, "name=shared", "resume=null", cwd=workdir)  # the lock is free again
    assert "holds a run; resume=auto continues it" in third.stderr
