"""`list`: what this machine can do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from importlib.util import find_spec

from hydrant.config.arguments import Flags
from hydrant.errors import unknown_name

_NEEDS = {"onnxrt": "onnxruntime", "tvm": "tvm", "openxla": "torch_xla", "tensorrt": "torch_tensorrt"}
"""The packages that backends of torch.compile need besides torch."""


def main(arguments: Sequence[str]) -> int:
    """Print a list; the exit status."""
    parser = Flags("list")
    parser.add_argument("--json", action="store_true")
    options, rest = parser.split(arguments)
    if rest not in ([], ["backends"]):
        raise unknown_name("", "list", " ".join(rest), ["backends"])
    found = backends()
    if options.json:
        print(json.dumps(found))
        return 0
    width = max(map(len, found))
    for name, obstacle in found.items():
        print(f"{name:<{width}}  {obstacle or 'ready'}")
    return 0


def backends() -> dict[str, str | None]:
    """Every backend of torch.compile (`compile.backend=`), with what it lacks here; None where it is ready."""
    import torch._dynamo

    names = [n for n in torch._dynamo.list_backends(None) if "TESTING_ONLY" not in n and "minifier" not in n]
    return {name: _obstacle(name) for name in sorted(names, key=lambda name: (name != "inductor", name))}


def _obstacle(name: str) -> str | None:
    import torch

    if name == "inductor" and not torch.cuda.is_available():
        return (
            None
            if shutil.which("g++") or shutil.which("clang++")
            else "needs a C++ compiler: apt install g++"
        )
    if name == "inductor":
        return None if find_spec("triton") else "needs triton, which comes with torch for CUDA"
    if name == "cudagraphs" and not torch.cuda.is_available():
        return "needs CUDA"
    package = _NEEDS.get(name)
    return None if package is None or find_spec(package) else f"needs {package}: pip install {package}"
