"""The environment variables by which a launcher (torchrun, srun) tells a process its rank. Imports no torch."""

from __future__ import annotations

import os
import subprocess

from hydrant.errors import ConfigError

_FIRST_PORT = 20_000  # below Linux's ephemeral ports (32768 and up)


def is_started_as_rank() -> bool:
    """Return whether a launcher started this process as one of several ranks."""
    # sbatch starts its script as one process outside of any step; only srun sets this variable above 1.
    return "RANK" in os.environ or read_number("SLURM_STEP_NUM_TASKS", 1) > 1


def read_number(variable: str, default: int) -> int:
    """Return the value of a launcher's variable.

    Raises:
        ConfigError: it is not a whole number of 0 or more.
    """
    value = os.environ.get(variable, str(default))
    if not value.isdecimal():
        message = f"needs a whole number of 0 or more, not {value!r}"
        raise ConfigError(variable, f"{message}; a launcher sets it: without one, unset {variable}")
    return int(value)


def set_torchrun_variables() -> None:
    """Under srun, set the variables that torchrun would set. Variables that are set already stay."""
    if "RANK" in os.environ or not is_started_as_rank():
        return
    job, step = int(os.environ["SLURM_JOB_ID"]), int(os.environ["SLURM_STEP_ID"])
    variables = {
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "WORLD_SIZE": os.environ["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": _first_host(os.environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(_FIRST_PORT + (31 * job + step) % 10_000),
    }
    os.environ.update({key: value for key, value in variables.items() if key not in os.environ})


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_host(node_list: str) -> str:
    """Return the first host of a SLURM node list such as `node[3-5,7]`."""
    command = ["scontrol", "show", "hostnames", node_list]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
