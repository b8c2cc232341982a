"""Draw one plot in the fork server: Matplotlib finds its fonts and Pillow its formats once, not in every job."""

import contextlib
import os
from pathlib import Path

from hydrant.extensions.pictures.plotting import draw_curves
from hydrant.sweeps.fork_server import is_fork_server

if is_fork_server():
    with contextlib.suppress(Exception):  # such as wrong Matplotlib settings: the job that draws reports it
        draw_curves({"": {"": ((0, 1), (0.0, 1.0))}}, Path(os.devnull))
