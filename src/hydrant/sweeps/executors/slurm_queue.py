"""The SLURM jobs of this user that wait or run, without submitit."""

from __future__ import annotations

import subprocess
from pathlib import Path

SUBMITIT = ".submitit"
"""The folder of submitit's files, in that of a sweep."""


def queued() -> dict[str, str] | None:
    """Return this user's waiting and running jobs: the script of each, by its id; None if squeue fails."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i %o"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    if done.returncode:
        return None
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip()]
    return {row[0]: "".join(row[1:]).strip() for row in rows}


def queued_in(sweep: Path) -> list[str]:
    """Return the ids of the jobs that a sweep has submitted: SLURM knows their scripts, which are in its folder."""
    folder = (sweep / SUBMITIT).resolve()
    return [number for number, script in (queued() or {}).items() if Path(script).parent == folder]
