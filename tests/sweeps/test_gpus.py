"""Reserving GPUs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from hydrant.sweeps.gpus import reserve_gpus


def test_no_two_jobs_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    using, seen, lock = list[str](), list[list[str]](), threading.Lock()

    def work() -> None:
        with reserve_gpus(
            ["0", "1", "2"], 2 if threading.current_thread().name == "pair" else 1, lambda: False
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
    with reserve_gpus(["0"], 1, lambda: False), reserve_gpus(["0"], 1, lambda: True) as reserved:
        assert reserved == []
