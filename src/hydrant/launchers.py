"""What launchers tell a process of its rank, in the environment. Brings in no torch."""

from __future__ import annotations

import os
import subprocess

_FIRST_PORT = 20_000  # below those that Linux gives to whoever connects


def is_started_as_rank() -> bool:
    """Whether a launcher started this process as one of several ranks."""
    by_srun = int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in os.environ
    return "RANK" in os.environ or by_srun


def speak_torchrun() -> None:
    """Say in torchrun's words what srun says in its own."""
    if "RANK" in os.environ or not is_started_as_rank():
        return
    told = {
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "WORLD_SIZE": os.environ["SLURM_NTASKS"],
        "MASTER_ADDR": _first_host(os.environ["SLURM_JOB_NODELIST"]),
        "MASTER_PORT": str(_FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % 10_000),
    }
    os.environ.update({key: value for key, value in told.items() if key not in os.environ})


def _first_host(nodes: str) -> str:
    """The first of the hosts that SLURM writes like `node[3-5,7]`."""
    found = subprocess.run(
        ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
    )
    return found.stdout.split()[0]
