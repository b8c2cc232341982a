"""The environment variables with which a process has GPUs of the stub."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu.build import LIBRARY, library_folder

_VARIABLE = "GPU_STUB_"
_SITE = Path(__file__).with_name("site")


@dataclass(frozen=True)
class Gpus:
    """GPUs of the stub."""

    devices: int = 1
    memory_gib: float = 80
    level: str = "values"
    """values: the CPU computes what CUDA kernels would. calls: CUDA kernels are launched, and compute nothing. time:
    as values, but work waits in its stream until something waits for it."""
    order: str = "late"
    """At the level time, when a stream does its work. late: only if something waits for it. side_first: streams other
    than the default one do it as soon as they may."""


def is_stub() -> bool:
    """Return whether the GPUs of this process are of the stub."""
    return f"{_VARIABLE}LEVEL" in os.environ


def stub_folder() -> Path:
    """Return the folder of the library that this process has preloaded."""
    return Path(os.environ[f"{_VARIABLE}FOLDER"])


def environment(gpus: Gpus, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a process with these GPUs.

    Raises:
        CannotBuild: what the stub is built with is not here.
        DoesNotCompile: g++ rejects its sources.
    """
    folder = library_folder()
    own = {f"{_VARIABLE}{key.upper()}": str(value) for key, value in asdict(gpus).items()}
    return {
        **{key: value for key, value in base.items() if key != "CUDA_VISIBLE_DEVICES"},
        **own,
        f"{_VARIABLE}FOLDER": str(folder),
        "LD_PRELOAD": str(folder / LIBRARY),
        "LD_LIBRARY_PATH": _before(folder, base.get("LD_LIBRARY_PATH")),
        "PYTHONPATH": _before(_SITE, base.get("PYTHONPATH")),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }


def _before(folder: Path, path: str | None) -> str:
    return os.pathsep.join([str(folder), *([path] if path else [])])
