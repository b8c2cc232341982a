"""The projects in examples/: their options and modules for this process, as in their folders."""

import sys
from pathlib import Path

import pytest
from repository import ROOT

EXAMPLES = ROOT / "examples"


def use_example(name: str, patch: pytest.MonkeyPatch) -> Path:
    """Let runs find the options and the modules of an example, which they may call; return its folder."""
    folder = EXAMPLES / name
    modules = [file.stem for file in folder.glob("*.py")]
    patch.setenv("HYDRANT_CONF", str(folder / "conf"))
    patch.setenv("HYDRANT_ALLOW_TARGETS", ",".join(modules))
    patch.syspath_prepend(folder)
    for module in modules:
        patch.delitem(sys.modules, module, raising=False)
    return folder
