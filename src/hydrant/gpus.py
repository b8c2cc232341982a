"""Which GPUs of this machine a job may use, beside those of other jobs and other sweeps."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from hydrant.isolation import call_isolated

_POLL_SECONDS = 0.2


def visible_gpus(preload: Sequence[str]) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return [name.strip() for name in told.split(",") if name.strip()]
    count = call_isolated(_num_gpus, (), preload).result  # torch counts them, and is not imported here
    return list(map(str, range(count))) if isinstance(count, int) else []


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


@contextlib.contextmanager
def held(gpus: Sequence[str], count: int, gives_up: Callable[[], bool]) -> Generator[list[str]]:
    """`count` GPUs for as long as this lasts; waits until so many are free, or gives up with none.

    A lock is a file's, so it holds between processes and ends with the one that has it.
    """
    while not gives_up():
        with contextlib.ExitStack() as locks:
            taken: list[str] = []
            for gpu in gpus:
                if len(taken) < count and _lock(gpu, locks):
                    taken.append(gpu)
            if len(taken) == count:
                yield taken
                return
        time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))  # two that each have one of two let go of it
    yield []


def _lock(gpu: str, locks: contextlib.ExitStack) -> bool:
    folder = Path(tempfile.gettempdir(), f"hydrant-gpus-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    file = locks.enter_context((folder / gpu).open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
