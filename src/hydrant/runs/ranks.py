"""Start the ranks of a job on this machine as processes, and combine their results into one."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from hydrant.errors import RankDied, RankHung, log_errors
from hydrant.files.redaction import redacted
from hydrant.runs.folder import SUMMARY, RunFolder, RunStatus, mark
from hydrant.runs.job import Job, RunResult, report_part
from hydrant.signals import STOP_SIGNALS, killed_by, sigint_blocked, signal_name
from hydrant.terminal.console import clear_activity
from hydrant.training.distributed.env import is_started_as_rank, num_cores
from hydrant.training.distributed.world import check_gpus

_PREFIX = "hydrant-ranks-"  # of the name of a temporary folder for files between this process and the ranks
_END_SECONDS = 30.0  # in which the other ranks must end after one has failed
_POLL_SECONDS = 0.1
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


def take_job() -> Job | None:
    """Read the job of this rank from the process that started it; None if that was killed before it wrote the job."""
    with contextlib.suppress(json.JSONDecodeError):
        return Job.from_json(json.load(sys.stdin))
    return None


def write_result(folder: Path, rank: int, result: RunResult) -> None:
    """Write the result of a rank for the launching process."""
    temporary = folder / f".result-{rank}.json"
    temporary.write_text(json.dumps(redacted(result.to_json())), encoding="utf-8")
    temporary.rename(folder / f"result-{rank}.json")


def _run_ranks(job: Job) -> tuple[RunResult, bool]:
    """Start the ranks once and wait. Return the result, and whether a restart may help: a rank died or hung."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, _received_signals() as received:
        folder, earlier = Path(name), RunFolder(job.folder).summary_time
        with _started(job, folder) as ranks:
            failures = _wait(ranks, received)
        files = {int(file.stem.partition("-")[2]): file for file in folder.glob("result-*.json")}
        results = {rank: RunResult(**json.loads(file.read_text("utf-8"))) for rank, file in files.items()}
        if (result := _reported_result(job, results, failures)) is not None:
            return result, False
        if (stopped := _stopped_result(job, received, results, failures)) is not None:
            with log_errors(SUMMARY):
                if (job.folder / SUMMARY).exists():
                    mark(job.folder, RunStatus.PREEMPTED)  # others lost their connection first
            return stopped, False
        if (hang := _hang_result(job, earlier)) is not None:
            return hang, not received
        return _mark_failed(job, _death(failures, results, folder)), not received


_Ranks = dict[int, subprocess.Popen[str]]  # by rank


@contextlib.contextmanager
def _started(job: Job, folder: Path) -> Generator[_Ranks]:
    """Start the ranks. At the end of the block, end those that still run.

    This process serves the store by which they find each other, so that no two jobs choose the same port.
    """
    from torch.distributed import TCPStore

    num_ranks = job.config["parallel"]["num_processes"]
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    variables = {
        "OMP_NUM_THREADS": str(max(num_cores() // num_ranks, 1)),
        **os.environ,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # as by torch's elastic agent: no rank serves it
        "TORCHELASTIC_RUN_ID": folder.name,
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),  # as by torchrun, for code of the user
    }
    ranks, text = _Ranks(), json.dumps(job.to_json())
    try:
        for rank in range(num_ranks):
            ranks[rank] = _start(rank, variables, folder)
        for process in ranks.values():
            assert process.stdin is not None
            # Through a pipe, so that the secrets in the config are never on a disk.
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it may have ended
                pipe.write(text)
        yield ranks
    finally:
        _end(ranks)


def _start(rank: int, variables: Mapping[str, str], folder: Path) -> subprocess.Popen[str]:
    """Start a rank. Only rank 0 prints; the errors of the others go into a file, which is read if they die."""
    with (folder / f"stderr-{rank}.log").open("wb") as errors, sigint_blocked():
        return subprocess.Popen(
            [sys.executable, "-m", "hydrant.runs.rank_main", str(folder), str(os.getpid())],
            env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if rank else None,
            stderr=errors if rank else None,
            text=True,
            start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which forwards it
        )


def _end(ranks: _Ranks) -> None:
    """End the ranks that still run. They have time to write their results."""
    running = [process for process in ranks.values() if process.poll() is None]
    for process in running:
        process.terminate()
    limit = time.monotonic() + _END_SECONDS
    for process in running:
        try:
            process.wait(max(limit - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _received_signals() -> Generator[list[int]]:
    """Yield the list of `STOP_SIGNALS` that this process receives meanwhile."""
    received: list[int] = []
    with contextlib.ExitStack() as handlers:
        for signum in STOP_SIGNALS:
            previous = signal.signal(signum, lambda signum, _: received.append(signum))
            handlers.callback(signal.signal, signum, previous)
        yield received


def _wait(ranks: _Ranks, received: Sequence[int]) -> dict[int, int]:
    """Wait until all ranks have ended or one has failed; return the exit codes of those that failed, by rank.

    Signals are forwarded. Ranks that handle them save and stop, however long that takes; before that, they die of them.
    """
    num_forwarded = 0
    while True:
        for signum in received[num_forwarded:]:
            num_forwarded += 1
            for process in ranks.values():
                process.send_signal(signum)
        codes = {rank: process.poll() for rank, process in ranks.items()}
        failures = {rank: code for rank, code in codes.items() if code}
        if failures or None not in codes.values():
            return failures
        time.sleep(_POLL_SECONDS)


_Results = dict[int, RunResult]  # by rank, of those that wrote one


def _reported_result(job: Job, results: _Results, failures: Mapping[int, int]) -> RunResult | None:
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
    result = causes[rank].on_rank(rank)
    return _mark_failed(job, result) if result.exit_status == 1 else result


def _stopped_result(
    job: Job, received: Sequence[int], results: _Results, failures: Mapping[int, int]
) -> RunResult | None:
    """Return the result of a run that a signal stopped, if one did."""
    if {*failures.values()} in ({-signum} for signum in STOP_SIGNALS):  # maybe of one rank, by `hydrant stop`
        signum = -min(failures.values())
        return RunResult.preempted(signum, f"stopped by {signal_name(signum)} before it started")
    if not received:
        return None
    if stopped := [result for result in results.values() if result.exit_status > 128]:
        return stopped[0]
    if 128 + signal.SIGINT in failures.values():  # by `StopRequest`
        message = f"stopped by SIGINT while a rank did not respond; {job.same_command()} continues it"
        return RunResult.preempted(signal.SIGINT, message)
    return None


def _mark_failed(job: Job, result: RunResult) -> RunResult:
    with log_errors(SUMMARY):
        mark(job.folder, RunStatus.FAILED, result.error)
    return result


def _hang_result(job: Job, earlier: float) -> RunResult | None:
    """Return the result of the watchdog, which wrote it to the summary before it ended the ranks.

    `earlier`: the time of the summary before they started. The clock of a shared disk may differ from that here.
    """
    run = RunFolder(job.folder)
    error_type = (run.summary.get("error") or {}).get("type")
    hung = error_type == RankHung.__name__ and run.summary_time != earlier
    return RunResult.failed(run.error, RankHung.__name__) if hung else None


def _death(failures: Mapping[int, int], results: _Results, folder: Path) -> RunResult:
    """Return which rank died first without a result, how, and the last line it printed."""
    if not failures:
        return RunResult.failed("rank 0 ended without a result", RankDied.__name__)
    rank = next((rank for rank in failures if rank not in results), min(failures))
    if rank in results and results[rank].error:  # else it died after its end
        return results[rank].on_rank(rank)
    code = failures[rank]
    lines = (folder / f"stderr-{rank}.log").read_text(encoding="utf-8", errors="replace").split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    how = f"was killed by {killed_by(-code)}" if code < 0 else f"ended with exit status {code}"
    last_output = f"; its last output: {line}" if line else ""
    return RunResult.failed(f"rank {rank} {how}{last_output}", RankDied.__name__)
