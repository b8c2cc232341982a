"""The progress bar and the pictures of a run below the cell of a notebook. Imports IPython only there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows pictures and a bar; not plain IPython."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def show_picture(path: Path) -> None:
    """Show a PNG below the cell, if this is a notebook."""
    if in_notebook():
        from IPython.display import Image, display

        display(Image(filename=str(path)))
