"""The table of a sweep stays below what is printed."""

import io
import re
import time
from collections.abc import Sequence

import pytest

from hydrant.extensions.progress import live_display


class Terminal(io.StringIO):
    """A terminal that understands newlines and the erasing of the lines above the cursor."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return the visible lines."""
        screen, row = [""], 0
        for part in re.split(r"(\x1b\[\d*[A-Za-z]|\x1b\[\?25[hl]|\r|\n)", self.getvalue()):
            match part:
                case "\x1b[1A":
                    row -= 1
                case "\x1b[2K":
                    screen[row] = ""
                case "\n":
                    row += 1
                    screen += [""] * (row == len(screen))
                case _ if part[:1] not in ("\x1b", "\r"):
                    screen[row] += part
                case _:
                    pass
        return screen[: row + 1]


def test_printed_text_appears_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, widths = Terminal(), list[int]()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("hydrant.extensions.progress._TABLE_SECONDS", 0.01)

    def lines(width: int, height: int) -> Sequence[str]:
        widths.append(width)
        return [f"drawing {len(widths)}", "below"]

    def wait_for_drawing() -> None:
        num_drawings = len(widths)
        while len(widths) < num_drawings + 2:
            time.sleep(0.001)

    with live_display(lines):
        wait_for_drawing()
        print("first")
        wait_for_drawing()
        print("second ", end="")
        wait_for_drawing()
        print("ends")
        wait_for_drawing()
        visible = terminal.lines()
        assert visible[:2] == ["first", "second ends"]
        assert visible[3:] == ["below"]
    assert terminal.lines() == ["first", "second ends", ""]
