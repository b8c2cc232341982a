"""Checks of the arguments of torch.compile. Each error names the config key to change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hydrant.errors import ConfigError, unknown_name

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def check_mode(mode: str, options: Mapping[str, Any] | None, device: torch.device) -> None:
    if mode not in _MODES:
        raise unknown_name("compile.mode", "mode", mode, _MODES)
    if mode == "reduce-overhead" and device.type != "cuda":
        message = "reduce_overhead records CUDA graphs and needs CUDA; use compile=default"
        raise ConfigError("compile", message)
    if options and mode != "default":
        message = f"torch.compile takes options or mode={mode}, not both; use compile=default"
        raise ConfigError("compile.options", message)


def check_budgets(**budgets: int | None) -> None:
    for key, budget in budgets.items():
        if budget is not None and budget < 0:
            raise ConfigError(f"compile.{key}", f"needs a number of at least 0, or null; not {budget}")


def check_cache_dir(cache_dir: str | None) -> None:
    if cache_dir is None:
        return
    folder = Path(cache_dir).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ConfigError("compile.cache_dir", f"{nearest} is not a writable folder; give another one")


def check_backend(backend: str, options: Mapping[str, Any] | None) -> None:
    import torch._dynamo

    backends = torch._dynamo.list_backends(None)
    if backend not in backends:
        public = [name for name in backends if "TESTING_ONLY" not in name]
        raise unknown_name("compile.backend", "backend", backend, public)
    if options and backend == "inductor":
        from torch._inductor import list_options

        for option in options.keys() - set(list_options()):
            raise unknown_name(f"compile.options.{option}", "option of inductor", option, list_options())
