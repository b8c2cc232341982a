"""Reserve GPUs of this machine for a job, so that neither jobs nor sweeps of the same user share one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from hydrant.sweeps.fork_server.call import call_isolated

_POLL_SECONDS = 0.2


def visible_gpus(preload: Sequence[str]) -> list[str]:
    """Return the names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES.

    Args:
        preload: modules that the fork server imports, which counts the GPUs so that this process needs no torch.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    count = call_isolated(_num_gpus, (), preload).result
    return list(map(str, range(count))) if isinstance(count, int) else []


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


@contextlib.contextmanager
def reserve_gpus(gpus: Sequence[str], count: int, should_stop: Callable[[], bool]) -> Generator[list[str]]:
    """Wait until `count` of the GPUs are free and reserve them. Once `should_stop()` is true, yield an empty list.

    A file lock per GPU holds between processes and ends with the process that holds it.
    """
    while not should_stop():
        with contextlib.ExitStack() as locks:
            reserved: list[str] = []
            for gpu in gpus:
                if len(reserved) < count and _try_lock(gpu, locks):
                    reserved.append(gpu)
            if len(reserved) == count:
                yield reserved
                return
        # Too few: all are released. The random time separates two jobs that each lock one of the two they need.
        time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))
    yield []


def _try_lock(gpu: str, locks: contextlib.ExitStack) -> bool:
    folder = Path(tempfile.gettempdir(), f"hydrant-gpus-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    file = locks.enter_context((folder / gpu).open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
