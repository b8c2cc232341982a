"""The end of a command loses nothing, though it takes no module apart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hydrant.runs.log_setup import process_settings

SCRIPT = """\
import atexit
from hydrant.runs.log_setup import end_command
atexit.register(print, "at exit")
file = open("file.txt", "w")
file.write("not closed")
end_command(3)
"""


def test_files_and_exit_handlers_and_a_profile_survive_the_end(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for profiler in ([], ["-m", "cProfile", "-o", "profile"]):
        command = [sys.executable, *profiler, "script.py"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (tmp_path / "file.txt").read_text() == "not closed"
        assert result.stdout == "at exit\n"
        (tmp_path / "file.txt").unlink()
    assert (tmp_path / "profile").stat().st_size


def test_triton_is_told_how_to_round_unless_the_user_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.9 warns at the first compiled kernel if the variable is not set."""
    name = "TRITON_DEFAULT_FP_FUSION"
    monkeypatch.delenv(name, raising=False)
    with process_settings():
        assert os.environ[name] == "1"
    assert name not in os.environ
    monkeypatch.setenv(name, "0")
    with process_settings():
        assert os.environ[name] == "0"
