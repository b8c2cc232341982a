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
    """Restore the settings of kernels. For the precision of float32, torch has older and newer ones.

    A run sets the older ones, and these set the newer ones. Torch refuses to read an older setting that contradicts a
    newer one of the user; such a setting is left as it is.
    """
    backends: Any = torch.backends
    newer = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    settings = [(backends.cudnn, name) for name in ("benchmark", "deterministic", "allow_tf32")]
    settings += [(backend, "fp32_precision") for backend in newer]
    before, matmul, determinism = list[tuple[Any, str, Any]](), None, _determinism()
    with contextlib.suppress(RuntimeError):
        matmul = torch.get_float32_matmul_precision()
    for backend, name in settings:
        with contextlib.suppress(RuntimeError):
            before.append((backend, name, getattr(backend, name)))
    try:
        yield
    finally:
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)
        for setting in before:
            setattr(*setting)
        if _determinism() != determinism:  # the setter imports Inductor
            enabled, warn_only = determinism
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
