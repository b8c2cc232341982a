"""Let a call that trains or evaluates leave nothing behind in the user's process."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch

from hydrant import seeding
from hydrant.runs.log_setup import preserve_loggers
from hydrant.runs.process_settings import process_settings, restored_gc


@contextlib.contextmanager
def unchanged_process() -> Generator[None]:
    """Restore arguments, variables, loggers, the global random generators and the global settings of torch."""
    with process_settings(), preserve_loggers(), restored_gc(), _random_state(), _torch_settings():
        yield


@contextlib.contextmanager
def _random_state() -> Generator[None]:
    host, devices = seeding.host_state(), []
    if torch.cuda.is_initialized():
        devices = list(range(torch.cuda.device_count()))
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        seeding.set_host_state(host)


@contextlib.contextmanager
def _torch_settings() -> Generator[None]:
    cudnn: Any = torch.backends.cudnn
    precision = torch.get_float32_matmul_precision()
    before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = before
        torch.set_float32_matmul_precision(precision)
        if torch.are_deterministic_algorithms_enabled() != is_deterministic:  # the setter imports Inductor
            torch.use_deterministic_algorithms(is_deterministic)
