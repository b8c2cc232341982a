"""`list`: list the config groups with their options, or the backends of torch.compile."""

import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from msgspec import UNSET, UnsetType

from hydrant.commands.registry import page
from hydrant.config.command_line import Flags
from hydrant.config.groups import group_options
from hydrant.errors import check_known
from hydrant.records.answers import Answer
from hydrant.terminal.console import emit, tell


class List(Answer):
    """The config groups or the compile backends.

    Attributes:
        groups: The options of each.
        backends: What each lacks; null if it is ready.
    """

    groups: Mapping[str, Sequence[str]] | UnsetType = UNSET
    backends: Mapping[str, str | None] | UnsetType = UNSET


def main(arguments: Sequence[str]) -> int:
    """Print a list and return the exit status."""
    _, words = Flags("list").split(arguments)
    lists = {"backends": backends, "groups": group_options}
    kind = " ".join(words) or "backends"
    check_known("", "list", kind, lists)
    rows = lists[kind]()
    tell(page("\n".join(f"  {name}  {_text(value)}" for name, value in rows.items())), {kind: rows}, emit)
    return 0


def _text(value: Sequence[str] | None) -> str:
    """Return the obstacle of a backend, or the options of a group."""
    if value is None:
        return "ready"
    return value if isinstance(value, str) else ", ".join(value)


def backends() -> dict[str, str | None]:
    """Return what each backend of torch.compile (`compile.backend=`) lacks on this machine; None if it is ready."""
    from hydrant.training.compile.base import backend_names

    names = sorted(backend_names(), key=lambda name: (name != "inductor", name))
    return {name: _obstacle(name) for name in names}


def _obstacle(name: str) -> str | None:
    import torch

    from hydrant.training.compile.base import missing_package

    if name == "inductor" and not torch.cuda.is_available():
        has_compiler = shutil.which("g++") or shutil.which("clang++")
        return None if has_compiler else "needs a C++ compiler: apt install g++"
    if name == "inductor":
        return None if find_spec("triton") else "needs triton, which comes with torch for CUDA"
    return missing_package(name)
