"""`list`: list the backends of torch.compile, and what each lacks on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from importlib.util import find_spec

from hydrant.config.command_line import Flags
from hydrant.errors import unknown_name


def main(arguments: Sequence[str]) -> int:
    """Print the list and return the exit status."""
    parser = Flags("list")
    parser.add_argument("--json", action="store_true")
    options, words = parser.split(arguments)
    if words not in ([], ["backends"]):
        raise unknown_name("", "list", " ".join(words), ["backends"])
    obstacles = backends()
    if options.json:
        print(json.dumps(obstacles))
        return 0
    width = max(map(len, obstacles))
    for name, obstacle in obstacles.items():
        print(f"{name:<{width}}  {obstacle or 'ready'}")
    return 0


def backends() -> dict[str, str | None]:
    """Return what each backend of torch.compile (`compile.backend=`) lacks on this machine; None if it is ready."""
    from hydrant.training.compile.validate import backend_names

    return {
        name: _obstacle(name) for name in sorted(backend_names(), key=lambda name: (name != "inductor", name))
    }


def _obstacle(name: str) -> str | None:
    import torch

    from hydrant.training.compile.validate import missing_package

    if name == "inductor" and not torch.cuda.is_available():
        has_compiler = shutil.which("g++") or shutil.which("clang++")
        return None if has_compiler else "needs a C++ compiler: apt install g++"
    if name == "inductor":
        return None if find_spec("triton") else "needs triton, which comes with torch for CUDA"
    return missing_package(name)
