"""`trust`: let configs name the packages of a project, from now on."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError
from hydrant.records import Answer
from hydrant.safety import trust
from hydrant.terminal.console import tell


class Trust(Answer):
    """The trusted projects that the command is about.

    Attributes:
        trusted: The trusted packages of each folder; with `--remove` nothing.
        num_gone: With `--list`: how many trusted folders do not exist now; they are left out.
    """

    trusted: Mapping[str, Sequence[str]]
    num_gone: int = 0


def main(arguments: Sequence[str]) -> int:
    """Trust a folder, trust it no longer, or list what is trusted. Return the exit status."""
    options, folders = Flags("trust", list=False, remove=False).split(arguments)
    if len(folders) > 1 or (options.list and (folders or options.remove)):
        raise ConfigError("", "takes one folder, or --list, or --remove and a folder")
    root, num_gone = Path(*folders), 0
    if options.list:
        known = trust.trusted_projects()
        projects = {folder: names for folder, names in known.items() if os.path.isdir(folder)}  # noqa: PTH112
        num_gone = len(known) - len(projects)
        lines = [described(Path(folder), packages) for folder, packages in projects.items()]
        lines += [f"and {num_gone} that are not there now"] if num_gone else []
    elif options.remove:
        trust.distrust(root)
        projects, lines = {}, [f"no longer trusted: {root.resolve()}"]
    else:
        projects = {str(root.resolve()): _trust(root)}
        lines = [f"trusted: {described(Path(folder), names)}" for folder, names in projects.items()]
    trusted = {folder: list(names) for folder, names in projects.items()}
    tell("\n".join(lines), {"trusted": trusted, "num_gone": num_gone})
    return 0


def _trust(root: Path) -> Sequence[str]:
    """Trust all packages that are in a folder now, and return them.

    Raises:
        ConfigError: it is no folder, belongs to another user, or anybody may write to it.
    """
    if not root.is_dir():
        raise ConfigError("", f"{root} is not a folder", remedy="give the root of your project")
    packages = trust.packages_in(root)
    trust.trust(root, packages)
    return packages


def described(root: Path, packages: Sequence[str]) -> str:
    """Return a line about a trusted project."""
    return f"{root} ({', '.join(packages) or 'no packages'})"
