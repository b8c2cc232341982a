"""The installed distribution: its version and commit, the command that installs an extra, and all entry points."""

import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError, log, log_errors

NAME = "hydrant-ml"
"""The name on package indexes, where `hydrant` is another project."""

_PACKAGE = Path(__file__).parent
_CHECKOUT = _PACKAGE.parents[1]


def version() -> str:
    """Return the version, such as `0.1.0`."""
    return metadata.version(NAME)


_installed = cache(metadata.entry_points)  # of all groups: reading them takes 20 ms


@cache
def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    """Return what installed packages, Hydrant's own among them, add by entry points of a group, by name.

    Of several with one name, the first counts, in the order of what they name.
    """
    points = dict[str, metadata.EntryPoint]()
    for point in sorted(_installed().select(group=group)):
        if (first := points.setdefault(point.name, point)).value != point.value:
            message = "%s has two of the name %s: %s counts, and %s is left out"
            log.warning(message, group, point.name, first.value, point.value)
    return points


@cache
def named_packages(group: str) -> Sequence[str]:
    """Return the packages that entry points of a group name, under whatever names."""
    return sorted({point.value for point in _installed().select(group=group)})


def listeners() -> dict[str, Any]:
    """Return what installed packages let listen to a run, a sweep or a preview, by name: of a class, a new object."""
    made = dict[str, Any]()
    for name, point in entry_points("hydrant.listeners").items():
        with log_errors(f"the listener {name} is left out"):
            made[name] = one() if isinstance(one := point.load(), type) else one
    return made


def tell_listeners(event: str, *arguments: Any) -> None:
    """Call the method `event` of the listeners that have it. What one raises is logged."""
    for name, listener in listeners().items():
        if method := getattr(listener, event, None):
            with log_errors(f"{name}.{event}"):
                method(*arguments)


def require_extra(extra: str, modules: Sequence[str], key: str, user: str) -> None:
    """Check that the modules of an extra are installed.

    Args:
        user: what needs them, for the message.

    Raises:
        ConfigError: one is missing; names the command that installs it.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ConfigError(key, f"{user} needs {', '.join(missing)}", remedy=f": {install_command(extra)}")


def extra_of(module: str) -> str | None:
    """Return the extra that installs a module, judged by the name of its distribution; None if there is none."""
    for requirement in metadata.requires(NAME) or ():
        match = re.fullmatch(r"([\w.-]+).*\bextra == ['\"]([\w-]+)['\"].*", requirement)
        if match and match[1].replace("-", "_") == module:
            return match[2]
    return None


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, from where it was installed.

    An installation from an index, a wheel, a Git URL and a checkout each need another requirement (PEP 610).
    """
    # Not find_spec("pip"): it makes the import hook of setuptools break a later `import setuptools`.
    tool = "pip install" if any(metadata.distributions(name="pip")) else "uv pip install"
    origin = _origin()
    if "dir_info" in origin:
        folder = Path(origin["url"].removeprefix("file://"))
        place = "." if folder == Path.cwd() else str(folder)
        return f"{tool} -e {shlex.quote(f'{place}[{extra}]')}"
    url = _url(origin)
    return f"{tool} {shlex.quote(f'{NAME}[{extra}]' + (f' @ {url}' if url else ''))}"


def requirement() -> str:
    """Return the requirement of this installation, for a project that needs it: from the same source, in this version.

    For an editable checkout or a wheel this is a path, which exists on this machine only. A folder that was copied into
    the environment, as in an image, need not exist any more.
    """
    origin = _origin()
    is_copied = "dir_info" in origin and not origin["dir_info"].get("editable")
    url = "" if is_copied else _url(origin)
    return f"{NAME} @ {url}" if url else f"{NAME}=={version()}"


def _url(origin: Mapping[str, Any]) -> str:
    """Return the URL of a direct reference; "" for an index."""
    url = origin.get("url", "")
    vcs = origin.get("vcs_info")
    return f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url


def _origin() -> dict[str, Any]:
    """Return where the distribution was installed from, as PEP 610 records it; empty for an index."""
    text = metadata.distribution(NAME).read_text("direct_url.json")
    return json.loads(text) if text else {}


def commit() -> str | None:
    """Return the commit of the code: recorded when the wheel was built, or of the checkout; None if it is unknown.

    `-dirty` at its end means uncommitted changes.
    """
    file = _PACKAGE / "COMMIT"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    if not (_CHECKOUT / ".git").exists():
        return None
    try:
        command = ["git", "-C", _CHECKOUT, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
