"""Calls of a slow service, made by a thread beside the training."""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

_SILENT_SECONDS = 120.0
"""How long the end of a run waits for one call, which has shorter time limits of its own."""


class NoAnswerError(Exception):
    """A call did not return within its time limit."""


def call_with_timeout(function: Callable[[], object], timeout: float) -> Exception | None:
    """Call `function` and wait at most `timeout` seconds.

    The call runs in a thread, because name resolution and waits for an answer cannot be interrupted otherwise.

    Returns:
        None on success, the exception that `function` raised, or NoAnswerError after the time limit.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="hydrant-call")
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        return NoAnswerError(f"no answer within {timeout:g} s")
    return errors[0] if errors else None


class Sender:
    """Makes calls one after the other in a thread of its own. After one that raises, it makes no other.

    Python does not wait for this thread when it exits, because a call to a lost server may take long.
    """

    def __init__(self) -> None:
        self._calls = SimpleQueue[Callable[[], object] | None]()
        self._error: Exception | None = None
        self._num_made = 0
        self._thread = threading.Thread(target=self._make_calls, name="hydrant-sender", daemon=True)
        self._thread.start()

    def send(self, call: Callable[..., object], *arguments: object) -> None:
        """Let the thread make a call. Raises what an earlier call has raised."""
        if self._error is not None:
            self.finish()
        self._calls.put(partial(call, *arguments))

    def finish(self) -> None:
        """Wait for all calls, and end the thread. Raises what a call has raised, or NoAnswerError if one hangs."""
        self._calls.put(None)
        while self._thread.is_alive():
            num_made = self._num_made
            self._thread.join(_SILENT_SECONDS)
            if self._thread.is_alive() and self._num_made == num_made:
                raise NoAnswerError(f"no answer within {_SILENT_SECONDS:g} s")
        if self._error is not None:
            raise self._error

    def _make_calls(self) -> None:
        for call in iter(self._calls.get, None):
            try:
                if self._error is None:
                    call()
            except Exception as error:
                self._error = error
            self._num_made += 1
