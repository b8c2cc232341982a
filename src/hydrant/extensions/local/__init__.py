"""`hydra/launcher=local`: several jobs at once on this machine, each with GPUs that are reserved for it."""

import contextlib
import fcntl
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from urllib.parse import quote

from hydrant.errors import ConfigError
from hydrant.files.on_disk import open_beside
from hydrant.files.plain_values import PositiveInt
from hydrant.sweeps.executors.base import Ended, Executor, StopSignal, Unit, UnitsEnded
from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated, forward_signals
from hydrant.training.distributed.env import num_cores

_POLL_SECONDS = 0.2


def _visible_gpus(preload: Sequence[str]) -> dict[str, str]:
    """Return the GPUs that this process may use: their names, as in CUDA_VISIBLE_DEVICES, and their UUIDs.

    The UUID is the same for all names of a GPU, such as its number. It is the name itself if CUDA knows no such GPU.
    The UUID of a part of a GPU (MIG) is in its name: of several parts, CUDA shows a process the first one only.

    Args:
        preload: the paths of what the fork server imports, which reads the UUIDs so that this process needs no torch.
    """
    result, visible = call_isolated(_uuids, (), preload).result, os.environ.get("CUDA_VISIBLE_DEVICES")
    uuids = [] if isinstance(result, ProcessDied) else result
    if visible is None:
        return {str(number): uuid for number, uuid in enumerate(uuids)}
    names = [name.strip() for name in visible.split(",") if name.strip()]
    known = zip(names, uuids if len(uuids) == len(names) else names, strict=True)
    return {name: name.removeprefix("MIG-") if name.startswith("MIG-") else uuid for name, uuid in known}


def _uuids() -> list[str]:
    import torch

    return [str(torch.cuda.get_device_properties(n).uuid) for n in range(torch.cuda.device_count())]


@contextlib.contextmanager
def reserve_gpus(
    gpus: Mapping[str, str], count: int, should_stop: Callable[[], bool], jobs_per_gpu: int = 1
) -> Generator[list[str]]:
    """Wait until `count` of the GPUs have room, reserve it, and yield their names; none once `should_stop()` is true.

    File locks hold between processes and end with the process that holds them. A GPU without jobs is taken before one
    that has some.

    Args:
        gpus: UUIDs by name.
        jobs_per_gpu: how many jobs may share a GPU. A job that shares with none waits until a GPU has no job at all.
    """
    while not should_stop():
        with contextlib.ExitStack() as locks:
            reserved: list[str] = []
            for place, (name, uuid) in itertools.product(range(jobs_per_gpu), gpus.items()):
                is_needed = len(reserved) < count and name not in reserved
                if is_needed and _try_place(uuid, place, jobs_per_gpu > 1, locks):
                    reserved.append(name)
            if len(reserved) == count:
                yield reserved
                return
        # Too few: all are released. The random time separates two jobs that each lock one of the two they need.
        time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))
    yield []


def _try_place(uuid: str, place: int, is_shared: bool, locks: contextlib.ExitStack) -> bool:
    """Lock a place on a GPU, and the GPU itself: together with others, or alone."""
    with contextlib.ExitStack() as both:
        of_gpu = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        if not (_try_lock(uuid, of_gpu, both) and _try_lock(f"{uuid} {place}", fcntl.LOCK_EX, both)):
            return False
        locks.push(both.pop_all())
        return True


def _try_lock(name: str, kind: int, locks: contextlib.ExitStack) -> bool:
    folder = Path(tempfile.gettempdir(), f"hydrant-gpus-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = open_beside(folder / quote(name, safe=""), os.O_RDWR | os.O_CREAT)
    locks.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Local(Executor):
    """Runs several jobs at once: each thread of a pool starts one job and waits for it.

    Args:
        num_jobs: jobs at once; null: as many as the GPUs suffice for, or the cores if there are no GPUs.
        jobs_per_gpu: jobs that share a GPU; 2 or more for small models, which leave most of it idle.
    """

    def __init__(self, num_jobs: PositiveInt | None, jobs_per_gpu: PositiveInt) -> None:
        self.num_jobs = num_jobs
        self._jobs_per_gpu = jobs_per_gpu

    def prepare(self) -> None:
        # Each job gets its share of the cores, so that their threads do not wait for each other. torch reads this
        # variable when it is imported.
        num_threads = max(num_cores() // self.num_jobs, 1) if self.num_jobs else 1
        os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))

    def run(self, units: Sequence[Unit], stop_signal: StopSignal) -> UnitsEnded:
        gpus = _visible_gpus(units[0].paths_to_preload([unit.jobs[0].config for unit in units]))
        max_ranks = max(unit.num_ranks for unit in units)
        if gpus and max_ranks > len(gpus):
            needed = f"{max_ranks} ranks need as many GPUs, but there are {len(gpus)}"
            raise ConfigError("parallel.num_processes", needed, remedy=f"give {len(gpus)} or fewer")
        num_at_once = self.num_jobs or max((len(gpus) * self._jobs_per_gpu or num_cores()) // max_ranks, 1)
        with ThreadPoolExecutor(num_at_once) as pool:
            futures = {pool.submit(self._run_with_gpus, unit, gpus): unit for unit in units}
            for future in as_completed(futures):
                if (ended := future.result()) is not None:
                    yield futures[future], ended

    def _run_with_gpus(self, unit: Unit, gpus: Mapping[str, str]) -> Ended | None:
        """Reserve a GPU per rank, if there are GPUs, and run the unit on them; None if a signal arrived before."""
        with forward_signals() as signals:
            count = unit.num_ranks if gpus else 0
            with reserve_gpus(
                gpus, count, lambda: signals.signum is not None, self._jobs_per_gpu
            ) as reserved:
                if signals.signum is not None:
                    return None
                unit.announce()
                variables = {"CUDA_VISIBLE_DEVICES": ",".join(reserved)} if gpus else {}
                return unit.run(variables, is_silent=True)
