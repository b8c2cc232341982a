"""Imported by the server of `hydrant.isolation`, before it forks: brings in what else is slow to import.

Its processes find that frozen: they do not look through it for garbage, which would write to every page of it. The
server itself ends at once, with nothing to put away.
"""

import atexit
import contextlib
import gc
import importlib
import os

from hydrant.importing import NAMES, importing

with importing():
    for _name in os.environ.get(NAMES, "").split():
        with contextlib.suppress(ImportError):
            importlib.import_module(_name)
gc.freeze()
atexit.register(os._exit, 0)
