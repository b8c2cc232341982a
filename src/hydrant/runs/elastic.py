"""Start the ranks of a job on this machine with torch's elastic agent, and combine their results into one."""

import contextlib
import dataclasses
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hydrant.errors import RankDied, RankHung, log_errors
from hydrant.files.redaction import redacted, redacted_text
from hydrant.runs.folder import SUMMARY, RunFolder, mark_failed, mark_preempted
from hydrant.runs.job import Job, RunResult, report_part
from hydrant.signals import STOP_SIGNALS, killed_by, send_signal, signal_name
from hydrant.terminal.console import clear_activity
from hydrant.training.distributed.env import is_started_as_rank, num_cores
from hydrant.training.distributed.world import check_gpus

_MODULE = "hydrant.runs.rank_main"
_PREFIX = "hydrant-ranks-"  # of the name of a temporary folder for files between this process and the ranks
_PIDS_FILE, _SIGNAL_FILE = "pids.json", "signal.json"
_CONSEQUENCES = (RankDied.__name__, "DistBackendError", "DistNetworkError", "DistStoreError")
"""Types of errors that the end of another rank may have caused, such as those of NCCL and torch's store."""


def needs_ranks(job: Job) -> bool:
    """Return whether a job is configured for several ranks and no launcher has started them."""
    settings = job.config["parallel"]
    allows_several = "max_restarts" in settings  # parallel=single refuses several ranks itself
    return settings["num_processes"] > 1 and allows_several and not is_started_as_rank()


def is_launched_rank() -> bool:
    """Return whether `launch_ranks` started this process."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(_PREFIX)


def launch_ranks(job: Job) -> RunResult:
    """Run a job on ranks in child processes and wait for its end. `STOP_SIGNALS` are forwarded to the ranks.

    Ranks that die or hang are restarted up to `parallel.max_restarts` times. A run that fails with an error is not,
    because it would fail again.

    Raises:
        ConfigError: this machine has fewer GPUs than ranks.
    """
    check_gpus(job.config["parallel"]["num_processes"])
    clear_activity()
    max_restarts = job.config["parallel"]["max_restarts"]
    for restart in range(1, max_restarts + 1):
        result, can_restart = _run_ranks(job)
        if not can_restart:
            return result
        report_part(result, f"restart {restart} of {max_restarts}")
        if job.config["resume"] is None:  # resume=null would refuse the folder with its checkpoints
            job = dataclasses.replace(job, config={**job.config, "resume": "auto"})
    return _run_ranks(job)[0]


def take_job(folder: Path, rank: int) -> Job | None:
    """Wait for the job of a rank; None if the launching process has ended."""
    # It has removed the folder, or was killed while it wrote.
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return Job.from_json(json.loads(_file(folder, "job", rank).read_text(encoding="utf-8")))
    return None


def announce_signal_handlers(pids: Sequence[int]) -> None:
    """Tell the launching process that all ranks now handle stop signals. A signal that came earlier is sent now."""
    if not is_launched_rank():
        return
    folder = Path(tempfile.gettempdir(), os.environ["TORCHELASTIC_RUN_ID"])
    _write(folder / _PIDS_FILE, pids)
    if (folder / _SIGNAL_FILE).exists():
        _signal_ranks(int((folder / _SIGNAL_FILE).read_text(encoding="utf-8")), folder)


def write_result(folder: Path, rank: int, result: RunResult) -> None:
    """Write the result of a rank for the launching process."""
    _write(_file(folder, "result", rank), redacted(result.to_json()))


def write_error_file(message: str) -> None:
    """Write the reason for a rank's failure into the file that torchrun reads for its final report."""
    details = {"py_callstack": redacted_text(message), "timestamp": int(time.time())}
    content = {"message": {"message": details["py_callstack"], "extraInfo": details}}
    _write(Path(os.environ["TORCHELASTIC_ERROR_FILE"]), content)


def _file(folder: Path, kind: str, rank: int) -> Path:
    return folder / f"{kind}-{rank}.json"


def _write(file: Path, content: Any) -> None:
    temporary = file.with_name(f".{os.getpid()}-{file.name}")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.rename(file)


def _run_ranks(job: Job) -> tuple[RunResult, bool]:
    """Start the ranks once and wait. Return the result, and whether a restart may help: a rank died or hung."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, _silence_agent():
        folder, started_at, failures = Path(name), time.time(), dict[int, Any]()
        with _hand_over(job, folder), _forward_signals(folder) as received:
            try:
                agent = elastic_launch(_launch_config(job, folder), sys.executable)
                agent("-m", _MODULE, str(folder), str(os.getpid()))
            except ChildFailedError as error:
                failures = error.failures
            except SignalException:
                message = f"stopped by {signal_name(received[0])} before it started"
                return RunResult.stopped(received[0], message), False
        results = _read_results(folder)
        if (result := _reported_result(job, results, failures)) is not None:
            return result, False
        if (stopped := _stopped_result(job, received, results, failures)) is not None:
            with log_errors(SUMMARY):
                mark_preempted(job.folder)  # the other ranks lost their connection before they could stop
            return stopped, False
        if (hang := _hang_result(job, started_at)) is not None:
            return hang, not received
        return _mark_failed(job, _death(failures, results, folder)), not received


@contextlib.contextmanager
def _hand_over(job: Job, folder: Path) -> Generator[None]:
    """Give the job to each rank through a named pipe, so that the secrets in its config are never on a disk."""
    text = json.dumps(job.to_json())
    pipes = [_file(folder, "job", rank) for rank in range(job.config["parallel"]["num_processes"])]

    def write(pipe: Path) -> None:
        # OSError: the rank has ended. `os.open` creates no file if the pipe is gone, as `Path.open` would.
        with contextlib.suppress(OSError), os.fdopen(os.open(pipe, os.O_WRONLY), "w") as file:
            file.write(text)

    threads = [threading.Thread(target=write, args=(pipe,), daemon=True) for pipe in pipes]
    for pipe, thread in zip(pipes, threads, strict=True):
        os.mkfifo(pipe, 0o600)
        thread.start()
    try:
        yield
    finally:
        for pipe, thread in zip(pipes, threads, strict=True):
            # Its rank never opened the pipe, or the thread is still about to open it.
            while thread.is_alive():
                os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
                thread.join(0.01)


@contextlib.contextmanager
def _silence_agent() -> Generator[None]:
    """Silence the loggers of torch's agent, because Hydrant reports the same itself."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _launch_config(job: Job, folder: Path) -> Any:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    num_ranks = job.config["parallel"]["num_processes"]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(num_cores() // num_ranks, 1)))
    # Only rank 0 prints. The output of the others goes to files and is read if they die.
    redirects = {rank: Std.ALL for rank in range(1, num_ranks)}
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,  # the agent would also restart ranks that fail with an error
        monitor_interval=0.1,
        signals_to_handle="SIGQUIT",  # `_forward_signals` handles the others
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=redirects),
    )


@contextlib.contextmanager
def _forward_signals(folder: Path) -> Generator[list[int]]:
    """Forward `STOP_SIGNALS` to the ranks and yield the list of those received.

    Ranks that already handle signals save and stop, however long that takes. Before that, the agent kills them.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    received: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        del frame
        received.append(signum)
        _write(folder / _SIGNAL_FILE, signum)  # because the exception below may be lost during an import
        if not _signal_ranks(signum, folder):
            raise SignalException(f"got {signum}", sigval=signal.SIGTERM)

    with contextlib.ExitStack() as handlers:
        for signum in STOP_SIGNALS:
            handlers.callback(signal.signal, signum, signal.signal(signum, forward))
        # The agent replaces the handler of SIGQUIT.
        handlers.callback(signal.signal, signal.SIGQUIT, signal.getsignal(signal.SIGQUIT))
        yield received


def _signal_ranks(signum: int, folder: Path) -> bool:
    """Send a signal to the ranks if they handle signals; return whether they do."""
    if not (folder / _PIDS_FILE).exists():
        return False
    for pid in json.loads((folder / _PIDS_FILE).read_text(encoding="utf-8")):
        send_signal(signum, pid)
    return True


_Results = dict[int, RunResult]  # by rank


def _read_results(folder: Path) -> _Results:
    """Return the results of the ranks that wrote one."""
    files = {int(file.stem.partition("-")[2]): file for file in folder.glob("result-*.json")}
    return {rank: RunResult(**json.loads(file.read_text(encoding="utf-8"))) for rank, file in files.items()}


def _reported_result(job: Job, results: _Results, failures: Mapping[int, Any]) -> RunResult | None:
    """Return the result that the ranks reported; None if they only report a lost connection, or nothing."""
    if not failures:
        return results.get(0)
    failed = {rank: result for rank, result in results.items() if 0 < result.exit_status < 128}
    causes = {rank: result for rank, result in failed.items() if result.error_type not in _CONSEQUENCES}
    if not causes:
        return None
    rank = min(causes)
    if rank == 0:  # it has written the summary
        return causes[0]
    result = dataclasses.replace(causes[rank], message=f"rank {rank}: {causes[rank].message}")
    return _mark_failed(job, result) if result.exit_status == 1 else result


def _stopped_result(
    job: Job, received: Sequence[int], results: _Results, failures: Mapping[int, Any]
) -> RunResult | None:
    """Return the result of a run that a signal stopped, if one did."""
    if {failure.exitcode for failure in failures.values()} == {
        -signal.SIGTERM
    }:  # `hydrant stop` of one that starts
        return RunResult.stopped(signal.SIGTERM, "stopped by SIGTERM before it started")
    if not received:
        return None
    if stopped := [result for result in results.values() if result.exit_status > 128]:
        return stopped[0]
    if any(failure.exitcode == 128 + signal.SIGINT for failure in failures.values()):  # by `StopRequest`
        message = f"stopped by SIGINT while a rank did not respond; {job.same_command()} continues it"
        return RunResult.stopped(signal.SIGINT, message)
    return None


def _mark_failed(job: Job, result: RunResult) -> RunResult:
    with log_errors(SUMMARY):
        mark_failed(job.folder, result.message, result.error_type)
    return result


def _hang_result(job: Job, started_at: float) -> RunResult | None:
    """Return the result of the watchdog, which wrote it to the summary before it ended the ranks."""
    run = RunFolder(job.folder)
    error_type = (run.summary.get("error") or {}).get("type")
    hung = error_type == RankHung.__name__ and run.summary_time >= started_at
    return RunResult.failed(run.error, RankHung.__name__) if hung else None


def _death(failures: Mapping[int, Any], results: _Results, folder: Path) -> RunResult:
    """Return which rank died first without a result, how, and the last line it printed."""
    if not failures:
        return RunResult.failed("rank 0 ended without a result", RankDied.__name__)
    rank = next((rank for rank in failures if rank not in results), min(failures))
    if rank in results:
        return dataclasses.replace(results[rank], message=f"rank {rank}: {results[rank].message}")
    code, files = failures[rank].exitcode, sorted(folder.glob(f"logs/**/{rank}/stderr.log"))
    lines = files[-1].read_text(encoding="utf-8", errors="replace").split("\n") if files else []
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    how = f"was killed by {killed_by(-code)}" if code < 0 else f"ended with exit status {code}"
    last_output = f"; its last output: {line}" if line else ""
    return RunResult.failed(f"rank {rank} {how}{last_output}", RankDied.__name__)
