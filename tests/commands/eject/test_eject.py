"""`hydrant eject`: the command, its file, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ejected import rows_of, unchanged_process
from training_runs import Train

from hydrant import cli
from hydrant.commands.eject.guide import page, refused_options

__all__ = ["unchanged_process"]
pytestmark = pytest.mark.usefixtures("unchanged_process")

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "eject.md"


def test_the_program_equals_the_command(train: Train, workdir: Path) -> None:
    """Also of the run's own file, in a new process, and `hydrant compare` reads both."""
    words = ("tracker=local", "duration=8", "log_every=2", "eval_every=4")
    folder = train(*words)
    assert cli.main(["eject", *words, "name=ejected", "--out", "run.py"]) == 0
    environment_of_torch = f"import torch; torch.set_num_threads({torch.get_num_threads()})"
    start = f"{environment_of_torch}; import runpy; runpy.run_path('run.py', run_name='__main__')"
    subprocess.run([sys.executable, "-c", start], check=True, capture_output=True)
    assert rows_of(Path("outputs/ejected")) == rows_of(folder)
    assert cli.main(["compare", str(folder), "outputs/ejected"]) == 0


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("skip_non_finite=true precision=fp16", "skip_non_finite"),
        ("+scheduler@schedules.weight_decay=plateau", "schedules"),
        ("compile=default compile.optimizer=true", "compile.optimizer"),
        ("precision=bf16_true", "precision.parameters"),
    ],
)
def test_what_cannot_be_ejected_is_refused_by_its_key(
    words: str, key: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eject", *words.split(), "--out", "run.py"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {key}: ")
    assert not Path("run.py").exists()


def test_no_file_is_overwritten(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.py").write_text("mine")
    assert cli.main(["eject"]) == 2
    assert "--out: run.py exists" in capsys.readouterr().err
    assert Path("run.py").read_text() == "mine"


def test_the_guide_shows_the_program_and_what_cannot_be_ejected() -> None:
    """`python -m hydrant.commands.eject.guide` writes both into the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    assert page(text) == text
    assert "torch" in refused_options()["profiler"]
