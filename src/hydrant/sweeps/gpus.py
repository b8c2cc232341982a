"""Reserve GPUs of this machine for a job, so that neither jobs nor sweeps of the same user share one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated

_POLL_SECONDS = 0.2


def visible_gpus(preload: Sequence[str]) -> dict[str, str]:
    """Return the GPUs that this process may use: their names, as in CUDA_VISIBLE_DEVICES, and their UUIDs.

    The UUID is the same for all names of a GPU, such as its number. It is the name itself if CUDA knows no such GPU.

    Args:
        preload: modules that the fork server imports, which reads the UUIDs so that this process needs no torch.
    """
    result, visible = call_isolated(_uuids, (), preload).result, os.environ.get("CUDA_VISIBLE_DEVICES")
    uuids = [] if isinstance(result, ProcessDied) else result
    if visible is None:
        return {str(number): uuid for number, uuid in enumerate(uuids)}
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return dict(zip(names, uuids if len(uuids) == len(names) else names, strict=True))


def _uuids() -> list[str]:
    import torch

    return [str(torch.cuda.get_device_properties(n).uuid) for n in range(torch.cuda.device_count())]


@contextlib.contextmanager
def reserve_gpus(
    gpus: Mapping[str, str], count: int, should_stop: Callable[[], bool]
) -> Generator[list[str]]:
    """Wait until `count` of the GPUs are free, reserve them, and yield their names; none once `should_stop()` is true.

    A file lock per GPU holds between processes and ends with the process that holds it.

    Args:
        gpus: UUIDs by name.
    """
    while not should_stop():
        with contextlib.ExitStack() as locks:
            reserved: list[str] = []
            for name, uuid in gpus.items():
                if len(reserved) < count and _try_lock(uuid, locks):
                    reserved.append(name)
            if len(reserved) == count:
                yield reserved
                return
        # Too few: all are released. The random time separates two jobs that each lock one of the two they need.
        time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))
    yield []


def _try_lock(uuid: str, locks: contextlib.ExitStack) -> bool:
    folder = Path(tempfile.gettempdir(), f"hydrant-gpus-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    file = locks.enter_context((folder / quote(uuid, safe="")).open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
