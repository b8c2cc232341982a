"""Reserving GPUs."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hydrant.extensions import local
from hydrant.extensions.local import _visible_gpus, reserve_gpus
from hydrant.sweeps.fork_server.call import CallResult, ProcessDied


def test_no_two_jobs_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    using, seen, lock = list[str](), list[list[str]](), threading.Lock()

    def work() -> None:
        with reserve_gpus(
            {name: name for name in "012"},
            2 if threading.current_thread().name == "pair" else 1,
            lambda: False,
        ) as reserved:
            with lock:
                assert not set(reserved) & set(using)
                using.extend(reserved)
                seen.append(reserved)
            time.sleep(0.01)
            with lock:
                for gpu in reserved:
                    using.remove(gpu)

    threads = [threading.Thread(target=work, name="pair" if n % 3 == 0 else "single") for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, seen)) == [1] * 6 + [2] * 3


def reserve(locks: contextlib.ExitStack, jobs_per_gpu: int, gpus: str = "01", count: int = 1) -> list[str]:
    """Return the GPUs that are reserved at once; none if the job would have to wait."""
    tries = iter([False, True])
    names = {name: name for name in gpus}
    return locks.enter_context(reserve_gpus(names, count, lambda: next(tries), jobs_per_gpu))


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[contextlib.ExitStack]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with contextlib.ExitStack() as stack:
        yield stack


def test_as_many_jobs_as_allowed_share_a_gpu_and_idle_gpus_come_first(locks: contextlib.ExitStack) -> None:
    assert [reserve(locks, 3) for _ in range(7)] == [["0"], ["1"], ["0"], ["1"], ["0"], ["1"], []]


def test_a_job_on_two_gpus_has_one_place_on_each(locks: contextlib.ExitStack) -> None:
    assert [reserve(locks, 2, count=2) for _ in range(3)] == [["0", "1"], ["0", "1"], []]


def test_a_job_that_shares_with_none_is_alone(locks: contextlib.ExitStack) -> None:
    shared = contextlib.ExitStack()
    assert reserve(shared, 2, "0") == ["0"]
    assert reserve(locks, 1, "0") == []
    shared.close()
    assert reserve(locks, 1, "0") == ["0"]
    assert reserve(locks, 2, "0") == []


def test_a_full_gpu_is_not_held_by_a_job_that_found_another(locks: contextlib.ExitStack) -> None:
    full = contextlib.ExitStack()
    assert [reserve(full, 2, "0") for _ in range(2)] == [["0"], ["0"]]
    assert reserve(locks, 2, "01") == ["1"]
    full.close()
    assert reserve(locks, 1, "0") == ["0"]


@pytest.mark.parametrize("uuid", ["GPU-5d0e", "MIG-GPU-5d0e/3/0"])
def test_a_gpu_with_two_names_is_reserved_once(
    uuid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with reserve_gpus({"0": uuid}, 1, lambda: False) as reserved:
        assert reserved == ["0"]
        with reserve_gpus({uuid: uuid}, 1, lambda: True) as again:
            assert again == []


@pytest.mark.parametrize(
    ("visible", "uuids", "expected"),
    [
        (None, ["GPU-a", "GPU-b"], {"0": "GPU-a", "1": "GPU-b"}),
        ("1, GPU-a", ["GPU-b", "GPU-a"], {"1": "GPU-b", "GPU-a": "GPU-a"}),
        ("0,7", ["GPU-a"], {"0": "0", "7": "7"}),
        ("MIG-a", ["a"], {"MIG-a": "a"}),
        ("MIG-a,MIG-b", ["a"], {"MIG-a": "a", "MIG-b": "b"}),
        ("", [], {}),
        (None, ProcessDied(1), {}),
    ],
)
def test_gpus_are_identified_by_their_uuids(
    visible: str | None, uuids: Any, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(local, "call_isolated", lambda *_: CallResult(uuids, None))
    assert _visible_gpus([]) == expected
