"""A hook with which a run tells that it has reached an update, and then waits to be killed: it cannot end before."""

import os
import sys
from pathlib import Path
from threading import Event
from typing import Any


class Wait:
    """Makes the file WAIT_FILE after update WAIT_AT, if these variables are set, and waits three updates later."""

    def __init__(self) -> None:
        self._wait_at = int(os.environ.get("WAIT_AT", sys.maxsize))

    def after_update(self, trainer: Any, num_updates: int) -> None:
        if num_updates >= self._wait_at:
            Path(os.environ["WAIT_FILE"]).touch()
        if num_updates >= self._wait_at + 3:
            Event().wait()
