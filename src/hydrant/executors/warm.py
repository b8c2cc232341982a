"""What the server of jobs does once, so that no job is the first to: Matplotlib finds its font, Pillow its formats."""

import contextlib
import os
from pathlib import Path

from hydrant.plotting import draw_curves
from hydrant.server import is_here

if is_here():
    with contextlib.suppress(Exception):  # of Matplotlib's settings, which the job that draws will tell
        draw_curves({"": {"": ((0, 1), (0.0, 1.0))}}, Path(os.devnull))
