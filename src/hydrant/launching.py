"""Start the ranks of a job on this machine, by torch's own elastic agent, and tell what became of them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from hydrant.job import Job, Result
from hydrant.launchers import is_started_as_rank
from hydrant.runs import mark_failed

_MODULE = "hydrant.ranks"
_GRACE_SECONDS = 60  # for ranks that are asked to stop, to save


def starts_ranks(job: Job) -> bool:
    """Whether a job asks for several ranks that no launcher has started."""
    settings = job.config["parallel"]
    is_for_several = "max_restarts" in settings  # an option for one process refuses more itself
    return settings["num_processes"] > 1 and is_for_several and not is_started_as_rank()


def launch(job: Job) -> Result:
    """Run a job on ranks of their own, to its end; SIGINT and SIGTERM are passed on."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    with tempfile.TemporaryDirectory(prefix="hydrant-ranks-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(_plain(job)), encoding="utf-8")
        died = ""
        try:
            elastic_launch(_settings(job, folder), sys.executable)("-m", _MODULE, str(folder))
        except ChildFailedError as error:
            died = _last_words(error, folder)
        except SignalException as request:
            if not (folder / "result.json").exists():
                died = f"stopped by {signal.Signals(request.sigval).name} before the ranks could save"
        if died:
            mark_failed(job.folder, died)
            return Result(1, None, died)
        return Result(**json.loads((folder / "result.json").read_text(encoding="utf-8")))


def read_job(folder: Path) -> Job:
    """The job that a rank was started for."""
    told: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    told["folder"] = Path(told["folder"])
    told["sweep_folder"] = None if told["sweep_folder"] is None else Path(told["sweep_folder"])
    return Job(**told)


def write_result(folder: Path, result: Result) -> None:
    """What rank 0 tells who started it."""
    aside = folder / ".result.json"
    aside.write_text(json.dumps(dataclasses.asdict(result)), encoding="utf-8")
    aside.rename(folder / "result.json")


def _plain(job: Job) -> dict[str, Any]:
    told = dataclasses.asdict(job)
    return told | {key: str(told[key]) for key in ("folder", "sweep_folder") if told[key] is not None}


def _settings(job: Job, folder: Path) -> Any:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    count = job.config["parallel"]["num_processes"]
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // count, 1)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_GRACE_SECONDS))
    # What other ranks print is kept for when they die; rank 0 speaks for all.
    others = {rank: Std.ALL for rank in range(1, count)}
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=job.config["parallel"]["max_restarts"],
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=others),
    )


def _last_words(error: Any, folder: Path) -> str:
    """Which rank failed first, and by what."""
    rank, failure = error.get_first_failure()
    told = str(failure.message)
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        said = _said(folder, rank)
        return f"rank {rank} was killed by {name}" + (f"; it said last: {said}" if said else "")
    return f"rank {rank}: {told}"


def _said(folder: Path, rank: int) -> str:
    """The last line that a rank wrote to its stderr."""
    files = sorted(folder.glob(f"logs/**/{rank}/stderr.log"))
    lines = files[-1].read_text(encoding="utf-8", errors="replace").split("\n") if files else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
