"""What torch.compile takes, refused here by the key to change."""

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
        told = "reduce_overhead records CUDA graphs and needs CUDA; use compile=default"
        raise ConfigError("compile", told)
    if options and mode != "default":
        told = f"torch.compile takes options or mode={mode}, not both; use compile=default"
        raise ConfigError("compile.options", told)


def check_budgets(**budgets: int | None) -> None:
    for key, budget in budgets.items():
        if budget is not None and budget < 0:
            raise ConfigError(f"compile.{key}", f"needs a number from 0 on, or null; not {budget}")


def check_cache_dir(cache_dir: str | None) -> None:
    if cache_dir is None:
        return
    folder = Path(cache_dir).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise ConfigError("compile.cache_dir", f"{there} cannot be written; give another folder")


def check_backend(backend: str, options: Mapping[str, Any] | None) -> None:
    import torch._dynamo

    if backend not in torch._dynamo.list_backends(None):
        known = [name for name in torch._dynamo.list_backends(None) if "TESTING_ONLY" not in name]
        raise unknown_name("compile.backend", "backend", backend, known)
    if options and backend == "inductor":
        from torch._inductor import list_options

        for option in options.keys() - set(list_options()):
            raise unknown_name(f"compile.options.{option}", "option of inductor", option, list_options())
