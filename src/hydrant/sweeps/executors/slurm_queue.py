"""The SLURM jobs of this user that wait or run, without submitit."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from hydrant.sweeps.plan import SUBMITIT
from hydrant.terminal.console import notice


def queued() -> dict[str, str] | None:
    """Return this user's waiting and running jobs: the script of each, by its id; None if squeue fails."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i %o"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return _unknown(f"squeue cannot be called ({error.strerror})")
    if done.returncode:
        said = " ".join(done.stderr.split())
        return _unknown(f"squeue ended with {done.returncode}{said and f': {said}'}")
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip()]
    return {row[0]: "".join(row[1:]).strip() for row in rows}


@cache
def _unknown(reason: str) -> None:
    """Print once why the queue is not known."""
    notice(f"warning: {reason}, so it is not known which SLURM jobs wait or run")


def queued_in(sweep: Path) -> list[str]:
    """Return the ids of the jobs that a sweep has submitted: SLURM knows their scripts, which are in its folder."""
    folder = (sweep / SUBMITIT).resolve()
    if not folder.is_dir():
        return []
    return [number for number, script in (queued() or {}).items() if Path(script).parent == folder]
