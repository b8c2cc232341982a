"""What a call of Hydrant must not change, because its process may live on, such as a notebook."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any


def process_state() -> dict[str, Any]:
    """Return the state that a run may have changed in this process, by name."""
    names = ("hydrant", "hydra", "torch")
    loggers = [logging.root, *map(logging.getLogger, names)]
    return {
        "sys.argv": list(sys.argv),
        "os.environ": dict(os.environ),
        "sys.path": list(sys.path),
        "signal handlers": {signum: signal.getsignal(signum) for signum in signal.valid_signals()},
        "logging handlers": {logger.name: list(logger.handlers) for logger in loggers},
        "logging levels": {x.name: (x.level, x.propagate, x.disabled) for x in loggers},
        "logging.disable": logging.root.manager.disable,
        "current folder": Path.cwd(),
        "umask": _umask(),
    }


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
