"""What a command shows on a terminal: a first line at once, what it trains, short lines; and plain lines elsewhere."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import tiny_job, train

from hydrant.commands.registry import commands
from hydrant.runs.reporter import end_lines
from hydrant.terminal.console import notice, say

COMPARE = ["compare     hydrant compare outputs"] if "compare" in commands() else []
FIRST = """
import sys
from hydrant import cli

def command(words):
    print({"torch", "hydra", "rich"} & sys.modules.keys())
    return 0

cli.pkgutil.resolve_name = lambda name: command
cli.main(["train"])
"""


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    for variable in ("TERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    return Terminal()


def output_in_terminal(code: str, **variables: str) -> str:
    ours, its = pty.openpty()
    command, environment = [sys.executable, "-c", code], {**os.environ, "TERM": "xterm", **variables}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        output = b""
        with contextlib.suppress(OSError):  # raised by Linux when the other side is closed
            while chunk := os.read(ours, 4096):
                output += chunk
        os.close(ours)
    assert process.returncode == 0
    return output.decode()


def test_the_first_line_comes_before_slow_imports_and_is_replaced() -> None:
    assert output_in_terminal(FIRST) == "hydrant train: starting...\r\x1b[Kset()\r\n"


SWEEP = """
import sys
from hydrant import cli
sys.argv, seeds = ["hydrant"], ",".join(map(str, range(20)))
print(cli.main(["train", "--multirun", "name=study", f"seed={seeds},x"]))
"""
"""A sweep that is refused when its jobs are composed."""


@pytest.mark.slow
@pytest.mark.usefixtures("workdir")
def test_a_sweep_counts_the_jobs_that_it_has_composed_on_a_terminal() -> None:
    counted = [f"hydrant train: composed {number} of 21 jobs..." for number in (0, 10, 20)]
    assert re.findall(r"hydrant train: composed [^\r]*", output_in_terminal(SWEEP)) == counted
    elsewhere = subprocess.run([sys.executable, "-c", SWEEP], capture_output=True, text=True, check=True)
    assert elsewhere.stdout == "2\n"
    [line] = elsewhere.stderr.splitlines()
    assert line.startswith("error: seed: needs a whole number, not 'x'; 1 of 21 jobs cannot run, ")


def test_there_is_no_such_line_for_the_other_ranks_and_dumb_terminals() -> None:
    assert output_in_terminal(FIRST, TERM="dumb") == "set()\r\n"
    assert output_in_terminal(FIRST, RANK="1", WORLD_SIZE="2") == "set()\r\n"


@pytest.mark.extension
def test_a_run_says_what_it_trains_and_how_to_go_on(
    tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = tiny_job(tmp_path / "outputs" / "first", "optimizer.lr=0.25", "scheduler=constant")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert train(job) == 0
    shown = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    for line in (
        "data        default: 64 train, 8 val; shape 1x4x4; 3 classes",
        "model       default: 83 parameters",
        "optimizer   default: lr 0.25, weight decay 0.01",
        "schedule    default: lr 0.25",
        "updates     4 of 8 samples: 0.5 epochs",
        "device      cpu, 1 rank",
        "run folder  outputs/first",
        "evaluate    hydrant evaluate outputs/first",
        *COMPARE,
    ):
        assert line in shown
    assert shown.index("run folder") < shown.index("update 0 of 4") < shown.index("finished: 4 updates")
    assert "\x1b[36m" in terminal.getvalue()
    log = (job.folder / "train.log").read_text()
    assert "INFO device      cpu, 1 rank\n" in log
    assert "\x1b" not in log


def test_the_best_weights_are_proposed_if_they_are_not_the_last(tmp_path: Path) -> None:
    job = tiny_job(tmp_path / "first")
    (job.folder / "checkpoints" / "update_00000004").mkdir(parents=True)
    last, best = ({"num_updates": 4, "best": {"num_updates": n}} for n in (4, 2))
    assert end_lines(job, 1.0, best)["evaluate"].endswith("first")  # save_every=null: it is not saved
    (job.folder / "checkpoints" / "best").symlink_to("update_00000004")
    assert end_lines(job, 1.0, last)["evaluate"].endswith("first")
    assert end_lines(job, 1.0, best)["evaluate"].endswith("first --weights best")
    last["best"] = {"num_updates": 4, "metric": "val_ema/accuracy"}  # of other weights than the model's
    assert end_lines(job, 1.0, last)["evaluate"].endswith("first --weights best")


def test_a_run_without_checkpoints_is_not_to_be_evaluated(tmp_path: Path) -> None:
    labels = ["duration", "run folder", *(line.split()[0] for line in COMPARE)]
    assert list(end_lines(tiny_job(tmp_path / "first"), 1.0, {})) == labels


def test_a_finished_run_names_the_next_commands(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tiny_job(Path("outputs", "first"))
    assert train(job) == 0
    capsys.readouterr()
    assert train(job) == 0
    assert capsys.readouterr().out.splitlines() == [
        "already finished: outputs/first, 4 updates; nothing to do",
        "evaluate    hydrant evaluate outputs/first --weights best",
        *COMPARE,
    ]


def test_a_pipe_gets_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny_job(tmp_path / "first"))
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\r" not in output
    assert f"evaluate    hydrant evaluate {tmp_path}/first --weights best\n" in output


@pytest.mark.parametrize("colours", [True, False])
def test_lines_are_broken_between_words(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, colours: bool
) -> None:
    if not colours:
        monkeypatch.setenv("NO_COLOR", "1")
    message = f"error: optimizer: {'a_long_word ' * 9}end"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        say(f"  {message}")
        notice(message)
    shown = terminal.getvalue()
    assert ("\x1b[1;31merror:\x1b[0m " in shown) is colours
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == f"{message} {message}"
    assert lines[1].startswith("  a_long_word")
