"""Checks of the arguments of torch.compile. Each error names the config key to change."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from hydrant.checks import check_known, unknown_name
from hydrant.errors import ConfigError

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def check_mode(mode: str, options: Mapping[str, Any] | None, device: torch.device) -> None:
    check_known("compile.mode", "mode", mode, _MODES)
    if mode == "reduce-overhead" and device.type != "cuda":
        message = "reduce_overhead records CUDA graphs and needs CUDA; use compile=default"
        raise ConfigError("compile", message)
    if options and mode != "default":
        message = f"torch.compile takes options or mode={mode}, not both; use compile=default"
        raise ConfigError("compile.options", message)


def check_cache_dir(cache_dir: str | None) -> None:
    if cache_dir is None:
        return
    folder = Path(cache_dir).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ConfigError(
            "compile.cache_dir", f"{nearest} is not a writable folder", remedy="give another one"
        )


_NEEDS = {
    "onnxrt": ("onnxruntime", "onnxruntime"),
    "openxla": ("torch_xla", "torch_xla"),
    "openxla_eval": ("torch_xla", "torch_xla"),
    "tensorrt": ("torch_tensorrt", "torch_tensorrt"),
    "tvm": ("tvm", "apache-tvm"),
}
"""The module that a backend of torch.compile needs besides torch, and the package that installs it."""

_UNUSABLE = re.compile("minifier|_with_mode$")
"""Registered backends that need arguments of their own, which torch.compile does not pass."""


def backend_names() -> list[str]:
    """Return the backends of torch.compile, without those of torch's own tests."""
    import torch._dynamo

    names = torch._dynamo.list_backends(None)
    return [name for name in names if "TESTING_ONLY" not in name and not _UNUSABLE.search(name)]


def missing_package(backend: str) -> str | None:
    """Return how to install what a backend needs besides torch; None if it is there."""
    module, package = _NEEDS.get(backend, ("torch", "torch"))
    return None if find_spec(module) else f"needs {module}: pip install {package}"


def check_backend(backend: str, options: Mapping[str, Any] | None) -> None:
    import torch._dynamo

    if backend not in torch._dynamo.list_backends(None) or _UNUSABLE.search(backend):
        raise unknown_name("compile.backend", "backend", backend, backend_names())
    if options and backend == "inductor":
        from torch._inductor import list_options

        for option in options.keys() - set(list_options()):
            raise unknown_name(f"compile.options.{option}", "option of inductor", option, list_options())
