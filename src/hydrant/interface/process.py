"""Let a call that trains or evaluates leave nothing behind in the user's process."""

import contextlib
from collections.abc import Generator
from typing import Any

import torch

from hydrant import seeding
from hydrant.runs.log_setup import preserve_loggers, process_settings


@contextlib.contextmanager
def unchanged_process() -> Generator[None]:
    """Restore arguments, variables, loggers, the global random generators and the global settings of torch."""
    with process_settings(), preserve_loggers(), _random_state(), _torch_settings():
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
    before, determinism = (cudnn.benchmark, cudnn.deterministic), _determinism()
    try:
        with _float32_precision():
            yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
        if _determinism() != determinism:  # the setter imports Inductor
            enabled, warn_only = determinism
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


@contextlib.contextmanager
def _float32_precision() -> Generator[None]:
    """Restore the precisions of float32 kernels, which torch has older and newer settings for.

    A run sets the older ones, and these set the newer ones. Torch refuses to read an older setting that contradicts a
    newer one of the user; such a setting is left as it is.
    """
    backends: Any = torch.backends
    flags = [backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    precisions = [flag.fp32_precision for flag in flags]
    matmul = allow_tf32 = None
    with contextlib.suppress(RuntimeError):
        matmul = torch.get_float32_matmul_precision()
    with contextlib.suppress(RuntimeError):
        allow_tf32 = backends.cudnn.allow_tf32
    try:
        yield
    finally:
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)
        if allow_tf32 is not None:
            backends.cudnn.allow_tf32 = allow_tf32
        for flag, precision in zip(flags, precisions, strict=True):
            flag.fp32_precision = precision
