"""The table of a sweep's runs, drawn again while they run."""

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence

from rich.live import Live
from rich.text import Text

from hydrant.errors import HydrantError
from hydrant.sweeps.plan import sparing
from hydrant.sweeps.results_table import styled
from hydrant.terminal.console import console, is_terminal

_DRAW_SECONDS = 0.5


@contextlib.contextmanager
def live_display(lines: Callable[[int, int], Sequence[str]]) -> Generator[None]:
    """Show lines at the bottom of the terminal, below everything this process prints; erase them at the end.

    Args:
        lines: returns the lines for a width and a height; called up to twice a second in a thread.
    """
    latest = Text()

    @sparing
    def read() -> None:
        nonlocal latest
        size = console().size
        with contextlib.suppress(OSError, HydrantError):  # unreadable now: the next drawing may succeed
            latest = styled(lines(size.width, size.height - 1))  # the last line is for the cursor

    def render() -> Text:
        read()
        return latest

    show = Live(
        console=console(),
        refresh_per_second=1 / _DRAW_SECONDS,
        transient=True,
        redirect_stderr=is_terminal(sys.stderr),
        get_renderable=render,
    )
    with show:
        console().show_cursor(True)  # a process that is killed would leave the terminal without one
        yield
