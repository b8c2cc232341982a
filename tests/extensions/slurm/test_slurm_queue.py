"""The jobs in SLURM's queue, where squeue may be missing or fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydrant.extensions.slurm.executor import queued, queued_in


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "squeue cannot be called (No such file or directory)"),
        ("printf 'no\ncontroller' >&2; exit 3", "squeue ended with 3: no controller"),
        ("exit 3", "squeue ended with 3"),
    ],
)
def test_it_is_said_once_why_the_queue_is_not_known(
    script: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if script is not None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert queued_in(tmp_path / "no_sweep_of_slurm") == []
    assert capsys.readouterr().err == ""
    assert (queued(), queued()) == (None, None)
    assert capsys.readouterr().err == f"warning: {reason}, so it is not known which SLURM jobs wait or run\n"
