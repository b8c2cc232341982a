"""The environment variables by which a launcher (torchrun, srun) tells a process its rank. Imports no torch."""

import os
import re

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
        remedy = f"a launcher sets it: without one, unset {variable}"
        raise ConfigError(variable, needs="a whole number of 0 or more", got=value, remedy=remedy)
    return int(value)


def set_torchrun_variables() -> None:
    """Under srun, set the variables that torchrun would set. Variables that are set already stay.

    Raises:
        ConfigError: the address of rank 0 is not known.
    """
    if "RANK" in os.environ or not is_started_as_rank():
        return
    readers = {
        "RANK": lambda: os.environ["SLURM_PROCID"],
        "LOCAL_RANK": lambda: os.environ["SLURM_LOCALID"],
        "WORLD_SIZE": lambda: os.environ["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": lambda: first_host(os.environ.get("SLURM_STEP_NODELIST", "")),
        "MASTER_PORT": _port_of_step,
    }
    os.environ |= {name: read() for name, read in readers.items() if name not in os.environ}


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def first_host(node_list: str) -> str:
    """Return the first host of SLURM's list of nodes. No command is called: a container may lack `scontrol`.

    >>> first_host("node[01-03,07],login"), first_host("a-[1-2]b"), first_host("r[0-1]n[3-4]"), first_host("x,y")
    ('node01', 'a-1b', 'r0n3', 'x')

    Raises:
        ConfigError: the list has another form.
    """
    if not (first := re.match(r"((?:[^][,\s]|\[\d[\d,-]*\])+)(,|$)", node_list)):
        message = f"the first host is not known: SLURM_STEP_NODELIST is {node_list!r}"
        raise ConfigError("MASTER_ADDR", message, remedy="set MASTER_ADDR=<host of rank 0>")
    return re.sub(r"\[(\d+)[\d,-]*\]", r"\1", first[1])


def _port_of_step() -> str:
    job, step = int(os.environ["SLURM_JOB_ID"]), int(os.environ["SLURM_STEP_ID"])
    return str(_FIRST_PORT + (31 * job + step) % 10_000)
