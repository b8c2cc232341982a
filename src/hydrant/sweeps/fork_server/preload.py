"""The imports of the fork server between `first_import` and `freeze_gc`: the paths in its environment variable."""

import json
import os

from hydrant.safety.targets import preload
from hydrant.sweeps.fork_server import PRELOAD_VARIABLE, is_fork_server

if is_fork_server():
    for path in json.loads(os.environ.pop(PRELOAD_VARIABLE, "[]")):
        preload(path)
