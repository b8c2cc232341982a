"""Start the ranks of a job on this machine, by torch's own elastic agent, and tell what became of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hydrant.distributed import check_gpus
from hydrant.errors import RankHung
from hydrant.job import Job, Result, report
from hydrant.launchers import is_started_as_rank, num_cores
from hydrant.logs import told
from hydrant.redaction import redacted_text
from hydrant.runs import mark_failed, mark_preempted, read_run
from hydrant.signals import STOPPING, send, signal_name

_MODULE = "hydrant.ranks"
_FOLDER = "hydrant-ranks-"
_PIDS, _ASKED = "pids.json", "asked.json"
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
_LOST_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")
"""What a rank says that lost another one, by gloo; and what it raises then, by NCCL."""


def starts_ranks(job: Job) -> bool:
    """Whether a job asks for several ranks that no launcher has started."""
    settings = job.config["parallel"]
    is_for_several = "max_restarts" in settings  # an option for one process refuses more itself
    return settings["num_processes"] > 1 and is_for_several and not is_started_as_rank()


def is_started_here() -> bool:
    """Whether this process is a rank that `launch` started."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(_FOLDER)


def launch(job: Job) -> Result:
    """Run a job on ranks of their own, to its end; the signals of `STOPPING` are passed on.

    Ranks that die or hang are started again, as often as `parallel.max_restarts` says. Others are not: what a run
    fails by itself, it would fail by again.

    Raises:
        ConfigError: this machine has fewer GPUs.
    """
    check_gpus(job.config["parallel"]["num_processes"])
    max_restarts = job.config["parallel"]["max_restarts"]
    num_restarts = 0
    while True:
        result, has_died = _run_ranks(job)
        if not has_died or num_restarts == max_restarts:
            return result
        num_restarts += 1
        report(result, f"restart {num_restarts} of {max_restarts}: ")
        if job.config["resume"] is None:  # it would refuse what they have saved
            job = dataclasses.replace(job, config={**job.config, "resume": "auto"})


def take_job(folder: Path, rank: int) -> Job:
    """The job that a rank was started for. Its file goes: the config holds secrets."""
    file = _file(folder, "job", rank)
    told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    return Job.from_plain(told)


def tell_hearing(pids: Sequence[int]) -> None:
    """From here on all ranks hear signals, tells one that was started here. One may have come before."""
    if not is_started_here():
        return
    folder = Path(tempfile.gettempdir(), os.environ["TORCHELASTIC_RUN_ID"])
    _write(folder / _PIDS, pids)
    if (folder / _ASKED).exists():
        _send(int((folder / _ASKED).read_text(encoding="utf-8")), folder)


def write_result(folder: Path, rank: int, result: Result) -> None:
    """What a rank tells who started it."""
    _write(_file(folder, "result", rank), dataclasses.asdict(result))


def tell_agent(message: str) -> None:
    """Why a rank fails, for what torchrun says of it at its end."""
    told = {"py_callstack": redacted_text(message), "timestamp": int(time.time())}
    content = {"message": {"message": told["py_callstack"], "extraInfo": told}}
    _write(Path(os.environ["TORCHELASTIC_ERROR_FILE"]), content)


def _file(folder: Path, what: str, rank: int) -> Path:
    return folder / f"{what}-{rank}.json"


def _write(file: Path, content: Any) -> None:
    aside = file.with_name(f".{os.getpid()}-{file.name}")
    aside.write_text(json.dumps(content), encoding="utf-8")
    aside.rename(file)


def _run_ranks(job: Job) -> tuple[Result, bool]:
    """What came of the ranks, and whether it is one that died or hung."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    for logger in filter(re.compile(r"torch\.distributed\.elastic").match, logging.root.manager.loggerDict):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # what they tell, we tell
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as name:
        folder, began, failures = Path(name), time.time(), dict[int, Any]()
        for rank in range(job.config["parallel"]["num_processes"]):
            _write(_file(folder, "job", rank), job.plain())
        with _passing_on(folder) as asked:
            try:
                agent = elastic_launch(_settings(job, folder), sys.executable)
                agent("-m", _MODULE, str(folder), str(os.getpid()))
            except ChildFailedError as error:
                failures = error.failures
            except SignalException:
                message = f"stopped by {signal_name(asked[0])} before it began"
                return Result(128 + asked[0], None, message), False
        if (result := _known(job, results := _results(folder), failures)) is not None:
            return result, False
        if stopped := [r for r in results.values() if asked and r.exit_status > 128]:
            with told("summary.json"):
                mark_preempted(job.folder)  # others lost it before they could stop
            return stopped[0], False
        if (hung := _hung(job, began)) is not None:
            return hung, not asked
        return _failed(job, Result(1, None, _last_words(failures, results, folder))), not asked


def _settings(job: Job, folder: Path) -> Any:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    count = job.config["parallel"]["num_processes"]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(num_cores() // count, 1)))
    # What other ranks print is kept for when they die; rank 0 speaks for all.
    others = {rank: Std.ALL for rank in range(1, count)}
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,  # the agent would start any that fails again
        monitor_interval=0.1,
        signals_to_handle="SIGQUIT",  # the others are ours
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=others),
    )


@contextlib.contextmanager
def _passing_on(folder: Path) -> Generator[list[int]]:
    """Signals, which this gives, go to ranks that hear them and may take their time to save; others are killed."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    asked: list[int] = []

    def pass_on(signum: int, frame: FrameType | None) -> None:
        del frame
        asked.append(signum)
        _write(folder / _ASKED, signum)  # what is raised here may be lost in the middle of an import
        if not _send(signum, folder):
            raise SignalException(f"got {signum}", sigval=signal.SIGTERM)

    with contextlib.ExitStack() as handlers:
        for signum in STOPPING:
            handlers.callback(signal.signal, signum, signal.signal(signum, pass_on))
        yield asked


def _send(signum: int, folder: Path) -> bool:
    """Send a signal to the ranks; whether they hear any."""
    if not (folder / _PIDS).exists():
        return False
    for pid in json.loads((folder / _PIDS).read_text(encoding="utf-8")):
        send(signum, pid)
    return True


def _results(folder: Path) -> dict[int, Result]:
    """What the ranks say that could say something."""
    files = {int(file.stem.partition("-")[2]): file for file in folder.glob("result-*.json")}
    return {rank: Result(**json.loads(file.read_text(encoding="utf-8"))) for rank, file in files.items()}


def _known(job: Job, results: Mapping[int, Result], failures: Mapping[int, Any]) -> Result | None:
    """How the run ended by itself; None if no rank knows more than that it lost another one."""
    if not failures:
        return results.get(0)
    own = {rank: r for rank, r in results.items() if 0 < r.exit_status < 128 and not _has_lost_another(r)}
    if not own:
        return None
    rank = min(own)
    if rank == 0:  # it has written the summary
        return own[0]
    result = dataclasses.replace(own[rank], message=f"rank {rank}: {own[rank].message}")
    return _failed(job, result) if result.exit_status == 1 else result


def _failed(job: Job, result: Result) -> Result:
    with told("summary.json"):
        mark_failed(job.folder, result.message, result.error)
    return result


def _has_lost_another(result: Result) -> bool:
    return result.error in _LOST_TYPES or any(word in result.message for word in _LOST)


def _hung(job: Job, began: float) -> Result | None:
    """What the ranks found of one that stands still, before they ended."""
    run = read_run(job.folder)
    is_new = (run.summary.get("error") or {}).get("type") == RankHung.__name__ and run.changed >= began
    return Result(1, None, run.error, RankHung.__name__) if is_new else None


def _last_words(failures: Mapping[int, Any], results: Mapping[int, Result], folder: Path) -> str:
    """Which rank died first, without a result, and what it said."""
    if not failures:
        return "rank 0 ended without a result"
    rank = next((rank for rank in failures if rank not in results), min(failures))
    if rank in results:
        return f"rank {rank}: {results[rank].message}"
    code, said = failures[rank].exitcode, _said(folder, rank)
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit status {code}"
    return f"rank {rank} {how}" + (f"; it said last: {said}" if said else "")


def _said(folder: Path, rank: int) -> str:
    """The last line that a rank wrote to its stderr."""
    files = sorted(folder.glob(f"logs/**/{rank}/stderr.log"))
    lines = files[-1].read_text(encoding="utf-8", errors="replace").split("\n") if files else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
