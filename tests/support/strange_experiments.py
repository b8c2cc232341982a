"""A fixture that runs a command with the experiment of a stranger, which must be refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hydrant import cli


@pytest.fixture
def refused_experiment(
    workdir: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run a command with a stranger's experiment that must be refused; return the error message.

    Asserts that nothing was called and nothing started: no file was written.
    """
    monkeypatch.setattr("sys.argv", ["hydrant"])

    def run(experiment: str, *words: str, command: str = "train") -> str:
        file = workdir / "conf" / "experiment" / "theirs.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# @package _global_\n{experiment}\n")
        assert cli.main([command, *words, "experiment=theirs"]) == 2
        assert {path.name for path in workdir.iterdir()} <= {"conf", "__pycache__"}
        return capfd.readouterr().err.splitlines()[-1].removeprefix("error: ")

    return run
