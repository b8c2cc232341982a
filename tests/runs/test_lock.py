"""Locks on the folders of runs and sweeps."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from full_disk import file_size_limit
from marks import slow
from processes import fork

from hydrant.errors import ConfigError, FolderInUse, FolderLost
from hydrant.runs import lock as lease
from hydrant.runs.folder import missing_folders, remove_if_empty
from hydrant.runs.lock import (
    LEASE,
    check_held,
    exclusive,
    is_held,
    is_in_use,
    note_no_lock,
    shared,
    wait_until_free,
)
from hydrant.sweeps.sweep import RunningSweep


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_LOCK_SECONDS", 0.2)


def test_a_fork_does_not_hold_the_run_folder(tmp_path: Path) -> None:
    """A worker that outlives its killed run must not block the next run."""
    with exclusive(tmp_path):
        child = fork(lambda: time.sleep(60))
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


def test_a_process_waits_for_another_one(tmp_path: Path) -> None:
    def hold() -> None:
        with exclusive(tmp_path):
            os.write(sender, b"1")
            time.sleep(0.6)

    receiver, sender = os.pipe()
    holder = fork(hold)
    os.read(receiver, 1)
    assert is_held(tmp_path)
    with pytest.raises(FolderInUse, match="another process is at work"), exclusive(tmp_path):
        pass
    assert wait_until_free([tmp_path]) == [tmp_path]
    assert os.waitpid(holder, 0)[1] == 0


def test_a_lease_without_room_on_the_disk_is_removed(tmp_path: Path) -> None:
    """The next start would take it for that of another machine, and wait."""
    no_space = pytest.raises(ConfigError, match="No space left")
    with file_size_limit(1), no_space, exclusive(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


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


def test_a_refused_start_does_not_remove_the_folder_of_another(tmp_path: Path) -> None:
    """Both have found that the folder is missing, so both would remove it; it holds no file of the run yet."""
    folder = tmp_path / "outputs" / "run"
    new = missing_folders(folder)
    with exclusive(folder):
        with pytest.raises(FolderInUse), exclusive(folder):
            pass
        remove_if_empty(new)
        check_held(folder)
    remove_if_empty(new)
    assert not (tmp_path / "outputs").exists()


def test_a_lock_on_a_replaced_folder_is_not_a_lock(tmp_path: Path) -> None:
    """While a process waits for the lock, the folder is moved away and made again."""
    folder, locked = tmp_path / "run", threading.Event()
    folder.mkdir()
    holder = os.open(folder, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)

    def start() -> None:
        with exclusive(folder):
            check_held(folder)
            locked.set()

    thread = threading.Thread(target=start)
    thread.start()
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    os.close(holder)
    thread.join()
    assert locked.is_set()
    assert not list((tmp_path / "moved").iterdir())


@pytest.mark.parametrize("change", ["removed", "moved", "replaced"])
def test_a_folder_that_is_removed_or_replaced_is_no_longer_held(change: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with exclusive(folder):
        check_held(folder)
        if change == "removed":
            shutil.rmtree(folder)
        else:
            folder.rename(tmp_path / "moved")
        if change == "replaced":
            folder.mkdir()
        with pytest.raises(FolderLost, match="was removed or replaced"):
            check_held(folder)


def test_another_thread_may_release_its_lock_during_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a stack ends while the thread of the checkpoints of another one looks after its folder."""
    stat = Path.stat
    ended = contextlib.ExitStack()
    ended.enter_context(exclusive(tmp_path / "other"))
    with ended, exclusive(tmp_path / "run"):

        def slow_stat(path: Path, **named: bool) -> os.stat_result:
            ended.close()
            return stat(path, **named)

        monkeypatch.setattr(Path, "stat", slow_stat)
        check_held(tmp_path / "run")


def write_lease(folder: Path, machine: str) -> None:
    (folder / LEASE).write_text(f"{machine}\nowner\n{0:012d}\n")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RENEW_SECONDS": 0.01,
        "POLL_SECONDS": 0.05,
        "LOST_POLLS": 5,
        "SETTLE_SECONDS": 0.1,
    }.items():
        monkeypatch.setattr(lease, name, value)


@pytest.mark.usefixtures("fast")
def test_a_folder_that_another_machine_has_is_refused_until_its_owner_is_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda *_: None)  # those of other machines are not seen here
        with exclusive(tmp_path):
            patch.setattr(lease, "this_machine", lambda: "another")
            with pytest.raises(FolderInUse, match="another process is at work"), exclusive(tmp_path):
                pass
            check_held(tmp_path)
    assert not (tmp_path / LEASE).exists()
    write_lease(tmp_path, "another")  # its owner does not renew it
    with exclusive(tmp_path):
        check_held(tmp_path)
    assert "is taken over after 0 s without a sign of life" in capfd.readouterr().err


def test_what_is_not_locked_for_want_of_locks_is_named_once(
    workdir: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    note_no_lock.cache_clear()
    for _ in range(2):
        with exclusive(workdir / "runs" / "a"), exclusive(workdir / "runs" / "b"):
            pass
        with RunningSweep(workdir).active({}):
            pass
    assert capfd.readouterr().err.splitlines() == [
        f"{workdir}/runs is not locked (the file system has no locks): leases alone keep others out",
        f"{workdir}/.sweep.lock is not locked (Operation not supported): if the sweep is started twice at once, "
        "some seconds may not be counted",
    ]


@pytest.mark.usefixtures("fast")
def test_a_machine_whose_name_begins_like_another_one_is_not_that_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Linux's id of the boot, the machine is known by its name."""
    monkeypatch.setattr(lease, "this_machine", lambda: "node")
    write_lease(tmp_path, "node7")
    with exclusive(tmp_path):
        pass
    assert "without a sign of life" in capfd.readouterr().err  # it was not taken over at once


def test_a_start_beside_a_living_run_only_says_that_it_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of a sweep tries again and again while another machine trains it."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.2)
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # those of other machines are not seen here
    with exclusive(tmp_path):
        monkeypatch.setattr(lease, "this_machine", lambda: "another")
        with pytest.raises(FolderInUse, match="another process is at work"), exclusive(tmp_path):
            pass
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("fast")
def test_a_process_that_did_not_answer_notices_that_its_folder_was_taken_over(tmp_path: Path) -> None:
    with exclusive(tmp_path):
        write_lease(tmp_path, "another")
        time.sleep(0.3)  # thirty renewals
        with pytest.raises(FolderLost, match="was taken over by another process"):
            check_held(tmp_path)
    assert (tmp_path / LEASE).exists()  # it belongs to the other process


def test_a_lease_that_a_killed_process_of_this_machine_left_does_not_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "POLL_SECONDS", 1e9)
    write_lease(tmp_path, lease.this_machine())
    with exclusive(tmp_path):
        check_held(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["pipe", *slow("link", "folder")])
def test_a_lease_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    """A stranger's folder must not make a start overwrite a file of the user, or wait for ever."""
    (victim := tmp_path / "victim").write_text("mine")
    (folder := tmp_path / "run").mkdir()
    make = {"link": lambda path: path.symlink_to(victim), "pipe": os.mkfifo, "folder": os.mkdir}[kind]
    make(folder / LEASE)
    with pytest.raises(ConfigError, match="run cannot be locked"), exclusive(folder):
        pass
    assert victim.read_text() == "mine"
