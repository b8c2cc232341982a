"""Describe the machine and the software of a run."""

import os
import platform
import subprocess
from typing import Any

import torch

from hydrant.imports import distribution


def describe_environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Return versions, GPU, number of ranks and git commits; None for values that do not exist here.

    `git_commit` and `git_dirty` describe the current folder, which may be the user's project; `hydrant_commit` is the
    commit of Hydrant.
    """
    commit = _git("rev-parse", "HEAD")
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "world_size": world_size,
        "slurm_job": _slurm_job(),
        "hydrant": distribution.version(),
        "hydrant_commit": distribution.commit(),
        "git_commit": commit,
        "git_dirty": None if commit is None else bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _slurm_job() -> str | None:
    """Return the id of the SLURM job that runs this process, as squeue shows it; that of a job of an array has `_`."""
    array, place = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{place}" if array and place else os.environ.get("SLURM_JOB_ID")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
