"""Environments that hold what a user installs: Hydrant, its requirements and chosen extras, no developers' tools."""

import fcntl
import json
import re
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

from processes import printed
from repository import ROOT

_UV = [sys.executable, "-m", "uv"]
_NAME = "hydrant-ml"


def extras_of(page: str) -> list[str]:
    """Return the extras that a documentation page tells to install."""
    return sorted(set(re.findall(r"(?:--extra |hydrant-ml\[|extra `)([\w-]+)", (ROOT / page).read_text())))


def packages_of(page: str) -> list[str]:
    """Return the other packages that a documentation page tells to install."""
    return sorted(set(re.findall(r"`(?:uv )?pip install ([\w-]+)`", (ROOT / page).read_text())) - {"uv"})


def environment(extras: Iterable[str] = (), packages: Iterable[str] = ()) -> Path:
    """Return the `bin` folder of an environment with the checkout, extras and other packages, in `build/`.

    It is made once for all processes that run tests, and again if the requirements or their versions here change.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = ROOT / "build" / "-".join(["installed", python, *extras, *packages])
    made_of = json.dumps([sys.version, _versions(), (ROOT / "pyproject.toml").read_text()])
    home.parent.mkdir(exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = home / "made_of.json"
        if not stamp.exists() or stamp.read_text() != made_of:
            install(home, "--editable", f"{ROOT}[{','.join(extras)}]", *packages)
            stamp.write_text(made_of)
    return home / "bin"


def install(home: Path, *requirements: str) -> None:
    """Make an environment with requirements and what these require, in the versions of this environment."""
    uv("venv", "--quiet", "--clear", "--python", sys.executable, str(home))
    (versions := home / "versions.txt").write_text("\n".join(_versions()))
    python = str(home / "bin" / "python")
    uv("pip", "install", "--quiet", "--python", python, "--constraint", str(versions), *requirements)
    _link_compiled(home)


def _link_compiled(home: Path) -> None:
    """Link what Python has compiled of the same packages here. It compiles a module whose source differs again."""
    here, there = (
        Path(sysconfig.get_path("purelib", vars={"base": str(base)})) for base in (sys.prefix, home)
    )
    for file in here.rglob(f"*.{sys.implementation.cache_tag}.pyc"):
        copy = there / file.relative_to(here)
        if copy.parents[1].is_dir() and not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            copy.hardlink_to(file)


def uv(*words: str) -> None:
    """Run a command of uv."""
    printed(*_UV, *words)


def _versions() -> list[str]:
    """Return the packages of this environment as requirements of exactly these versions."""
    versions: dict[str, str] = {}
    for distribution in distributions():
        versions.setdefault(distribution.metadata["Name"], distribution.version)
    return sorted(f"{name}=={version}" for name, version in versions.items() if name != _NAME)
