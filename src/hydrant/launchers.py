"""What launchers tell a process of its rank, in the environment. Brings in no torch."""

from __future__ import annotations

import os
import subprocess

_FIRST_PORT = 20_000  # below those that Linux gives to whoever connects


def is_started_as_rank() -> bool:
    """Whether a launcher started this process as one of several ranks."""
    by_srun = (
        int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    )  # sbatch itself starts one process, no step
    return "RANK" in os.environ or by_srun


def speak_torchrun() -> None:
    """Say in torchrun's words what srun says in its own."""
    if "RANK" in os.environ or not is_started_as_rank():
        return
    job, step = int(os.environ["SLURM_JOB_ID"]), int(os.environ["SLURM_STEP_ID"])
    told = {
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "WORLD_SIZE": os.environ["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": _first_host(os.environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(_FIRST_PORT + (31 * job + step) % 10_000),
    }
    os.environ.update({key: value for key, value in told.items() if key not in os.environ})


def num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_host(nodes: str) -> str:
    """The first of the hosts that SLURM writes like `node[3-5,7]`."""
    found = subprocess.run(
        ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
    )
    return found.stdout.split()[0]
