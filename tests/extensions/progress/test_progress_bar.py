"""The progress bar is cheap, draws rarely, shows nothing without a terminal, and leaves complete lines."""

import contextlib
import io
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hydrant.terminal.console import Progress


class Terminal(io.StringIO):
    """A stdout that claims to be a terminal."""

    def isatty(self) -> bool:
        return True

    def draws(self) -> int:
        return self.getvalue().count("% ")

    def screen(self) -> list[str]:
        return rendered(self.getvalue())


def rendered(output: str) -> list[str]:
    """Return the lines that a terminal would show, without trailing spaces."""
    lines, column = [""], 0
    output = re.sub(r"\x1b\[(\d*;?)*m|\x1b\[\?25[hl]", "", output)  # colours, and the cursor
    for character in re.split(r"(\x1b\[2K|.)", output.replace("\r\n", "\n")):
        if character == "\n":
            lines.append("")
            column = 0
        elif character == "\r":
            column = 0
        elif character == "\x1b[2K":
            lines[-1] = ""
        elif character:
            lines[-1] = lines[-1][:column].ljust(column) + character + lines[-1][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


@pytest.fixture
def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    """The test calls this itself, because pytest replaces stdout between fixtures and test."""

    def open_(width: int = 120) -> Terminal:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.delenv("TERM", raising=False)
        return terminal

    return open_


def test_it_draws_at_most_ten_times_a_second(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal()
    began = time.monotonic()
    with contextlib.closing(Progress.start(10**9, 0)) as progress:
        while time.monotonic() - began < 0.55:
            progress.advance()
            progress.log({"num_updates": 1, "train/loss": 0.5})
    assert 3 <= terminal.draws() <= 3 + 10 * (time.monotonic() - began)  # and at the start and the end


@pytest.mark.parametrize("width", [80, 120])
def test_it_fills_the_terminal(open_terminal: Callable[..., Terminal], width: int) -> None:
    terminal = open_terminal(width)
    with contextlib.closing(Progress.start(2000, 1000)) as progress:
        progress.log({"num_updates": 1000, "val/loss": 0.3, "val/accuracy": 0.9})
        for _ in range(500):
            progress.advance()
        progress.log({"num_updates": 1500, "train/loss": 0.123456, "optim/lr": 1e-3})
    line, end = terminal.screen()
    assert len(line) == width
    assert line.startswith(" 75% ━━━")
    assert " 1,500/2,000 0:01 left  loss 0.1235  val/accuracy 0.9" in line
    assert ("updates/s  lr 0.001" in line) is (width == 120)
    assert end == ""


def test_a_narrow_terminal_shows_the_count(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal(24)
    with contextlib.closing(Progress.start(200, 0)) as progress:
        progress.log({"num_updates": 0, "val/accuracy": 0.9})
    assert terminal.screen() == ["  0% ━━━━━━━━━━━━━ 0/200", ""]


def test_it_has_no_colours_where_they_are_not_wanted(
    open_terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = open_terminal(24)
    with contextlib.closing(Progress.start(200, 100)) as progress:
        progress.advance()
    assert "\x1b[3" not in terminal.getvalue()
    assert terminal.screen()[0].startswith(" 50% ━━━━━       101/200")


def test_a_dumb_terminal_gets_no_bar(
    open_terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = open_terminal()
    monkeypatch.setenv("TERM", "dumb")
    with contextlib.closing(Progress.start(200, 0)) as progress:
        progress.advance()
    assert terminal.getvalue() == ""


def test_it_shows_nothing_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    with contextlib.closing(Progress.start(10, 0)) as progress:
        progress.advance()
        progress.log({"num_updates": 1, "train/loss": 0.5})
    progress.close()
    assert type(progress) is Progress
    assert stdout.getvalue() == ""


def test_log_lines_appear_above_the_bar(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal()
    handler = logging.StreamHandler(terminal)  # on the root logger, as by Hydra
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.closing(Progress.start(100, 0)) as progress:
            for _ in range(3):
                progress.advance()
                logging.getLogger("hydrant").warning("loss is high")
            print("printed")
            assert terminal.screen()[:3] == ["loss is high"] * 3
            assert terminal.screen()[3] == "printed"
            assert terminal.screen()[4].startswith("  1% ")  # as it was drawn last
    finally:
        logging.getLogger().removeHandler(handler)
    assert terminal.screen()[4].startswith("  3% ")
    assert sys.stdout is terminal
    assert handler.stream is terminal


def test_close_may_be_called_twice(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal()
    progress = Progress.start(10, 0)
    progress.advance()
    progress.close()
    once = terminal.getvalue()
    progress.close()
    assert terminal.getvalue() == once


def test_an_update_takes_less_than_two_microseconds(open_terminal: Callable[..., Terminal]) -> None:
    open_terminal()
    with contextlib.closing(Progress.start(10**9, 0)) as progress:
        advance, best = progress.advance, float("inf")
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(20_000):
                advance()
            best = min(best, (time.perf_counter() - began) / 20_000)
    assert best < 2e-6  # 0.3 us on an idle machine


def test_an_interrupt_leaves_complete_lines() -> None:
    program = """
        import contextlib
        import signal
        import time
        from hydrant.terminal.console import Progress
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
        try:
            with contextlib.closing(Progress.start(1000, 0)) as progress:
                while True:
                    progress.advance()
                    time.sleep(0.01)
        except KeyboardInterrupt:
            print("stopped")
    """
    source = str(Path(sys.modules[Progress.__module__].__file__ or "").parents[2])
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    terminal, child_terminal = pty.openpty()
    with subprocess.Popen(
        command, stdout=child_terminal, stderr=child_terminal, env={**os.environ, "PYTHONPATH": source}
    ) as child:
        os.close(child_terminal)
        output = os.read(terminal, 4096)  # the first line is drawn
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # raised by Linux when the other side is closed
            while chunk := os.read(terminal, 4096):
                output += chunk
        os.close(terminal)
    assert child.returncode == 0
    *_, bar, message, end = rendered(output.decode())
    assert "/1,000 " in bar
    assert (message, end) == ("stopped", "")
