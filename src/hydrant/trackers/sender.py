"""Calls of a slow service, made by a thread beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue


class Sender:
    """Makes calls one after the other in a thread of its own. After one that raises, it makes no other.

    Python does not wait for this thread when it exits, because a call to a lost server may take long.
    """

    def __init__(self) -> None:
        self._calls = SimpleQueue[Callable[[], object] | None]()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._make_calls, name="hydrant-sender", daemon=True)
        self._thread.start()

    def send(self, call: Callable[..., object], *arguments: object) -> None:
        """Let the thread make a call. Raises what an earlier call has raised."""
        if self._error is not None:
            self.finish()
        self._calls.put(partial(call, *arguments))

    def finish(self) -> None:
        """Wait for all calls, and end the thread. Raises what a call has raised."""
        self._calls.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _make_calls(self) -> None:
        for call in iter(self._calls.get, None):
            try:
                if self._error is None:
                    call()
            except Exception as error:
                self._error = error
