"""What the user trusts: projects, whose own packages a config may name, and packages that the command line allows.

`hydrant trust` and `hydrant init` write the list into the config folder of the user. It is not in the project, because
a project that somebody else wrote must not be able to trust itself.
A config file may request other packages with `allow_targets`; the command line must allow them.
"""

import importlib.util
import json
import os
import shlex
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from hydrant.errors import ConfigError, RecordError, quoted, shown
from hydrant.files.on_disk import replace_file


@dataclass(frozen=True)
class Project:
    """A trusted folder and the names of its packages; no names if the folder is not trusted."""

    root: Path
    packages: tuple[str, ...]
    is_trusted: bool

    def named_by(self, paths: Iterable[object]) -> list[str]:
        """Return the packages of this project that some of these dotted paths name."""
        named = {str(path).partition(".")[0] for path in paths}
        return [package for package in self.packages if package in named]

    def check_origin(self, path: str, key: str) -> None:
        """Refuse the path of a part of this project that would be imported from elsewhere, or that others may change.

        Raises:
            ConfigError: the import would find another file, such as an installed package of the same name; or the
                project belongs to another user, or anybody may write to it.
        """
        for package in self.named_by([path]):
            file = _origin(package)
            if file is None or file not in tuple(_own_files(self.root, package)):
                importable = f"{file or 'nothing that is a file'} would be imported"
                message = f"{package!r} is a package of the trusted project {self.root}, but {importable}"
                remedy = "rename the package, or remove what hides it; a link does not count, nor a folder"
                raise ConfigError(key, message, remedy=f"{remedy} without __init__.py")
            for place in (self.root, file.parent, file):
                check_private(place, key)

    def check_definition(self, path: str, target: object, key: str) -> None:
        """Refuse what a package of this project has only imported, such as `my_project.data.os.system`.

        Raises:
            ConfigError: `target`, which `path` names, is defined elsewhere.
        """
        if self.named_by([path]) and not self.named_by([getattr(target, "__module__", None)]):
            message = f"{path!r} is not defined in {', '.join(self.packages)}, but imported there"
            raise ConfigError(key, message, remedy="define a class or a function that calls it")


NO_PROJECT = Project(Path(), (), is_trusted=False)


class _Content(Struct):
    """The file with the trusted projects."""

    projects: dict[str, list[str]]  # the packages of each project, by its real path


def working_project() -> Project:
    """Return the project whose root is the working folder.

    Raises:
        ConfigError: the list of projects is damaged, or somebody else may write to it.
    """
    root = Path.cwd()
    projects = trusted_projects()
    return Project(root, tuple(projects.get(str(root), ())), str(root) in projects)


def trusted_projects() -> dict[str, list[str]]:
    """Return the packages of every trusted project, by its path.

    Raises:
        ConfigError: the list of projects is damaged, or somebody else may write to it.
    """
    file = _list_file()
    if file is None or not file.exists():
        return {}
    check_private(file, "")
    from hydrant.files.read_file import read_json  # late: the loop imports this module, and needs no YAML

    try:
        content = read_json(file, _Content)
    except RecordError as error:
        raise ConfigError("", str(error), remedy="remove it, and trust your projects again") from error
    return content.projects if content else {}


def trust(root: Path, packages: Collection[str]) -> None:
    """Trust these packages of a project from now on, and no others of it.

    Raises:
        ConfigError: the project belongs to another user, anybody may write to it, its path is no text, or the list
            cannot be written.
    """
    path = root.resolve()
    check_private(path, "")
    try:
        str(path).encode()  # else nobody could read the list
    except UnicodeEncodeError as error:
        raise ConfigError("", f"the path {path} is not UTF-8", remedy="rename the folder") from error
    _write(trusted_projects() | {str(path): sorted(packages)})


def distrust(root: Path) -> None:
    """Trust a project no longer.

    Raises:
        ConfigError: the list cannot be written.
    """
    _write({folder: names for folder, names in trusted_projects().items() if folder != str(root.resolve())})


def packages_in(root: Path) -> list[str]:
    """Return the names of the packages and modules at the root and in `src` of a project, without its tests."""
    names = {path.parent.name for path in root.glob("*/__init__.py")}
    names |= {path.parent.name for path in root.glob("src/*/__init__.py")}
    names |= {path.stem for path in root.glob("*.py")}
    return sorted(name for name in names - _NO_PARTS if _can_be_trusted(root, name))


def could_be_trusted(package: str) -> bool:
    """Whether a package is in the working folder, so that trusting this folder would allow it."""
    return _can_be_trusted(Path.cwd(), package)


def check_private(path: Path, key: str) -> None:
    """Refuse a path that neither the current user nor root owns, or that anybody may write.

    Raises:
        ConfigError: names the path and the reason.
    """
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        reason, remedy = "belongs to another user", "use a copy of your own"
    elif status.st_mode & stat.S_IWOTH:
        reason, remedy = "may be written by anybody", f"run: chmod o-w {path}"
    else:
        return
    raise ConfigError(key, f"{path} is not trusted, because it {reason}", remedy=remedy)


def _can_be_trusted(root: Path, name: str) -> bool:
    """Return whether a project has a package of this name that can be imported: Python's own modules come first."""
    is_own = name.isidentifier() and name not in sys.stdlib_module_names
    return is_own and any(file.is_file() for file in _own_files(root.resolve(), name))


_NO_PARTS = {"tests", "test", "setup", "conftest", "hydra_plugins", "hydrant"}
"""Names at the root of a project that are not packages with its parts."""


def _list_file() -> Path | None:
    """Return the path of the list; None for a user without a home folder.

    A relative XDG_CONFIG_HOME does not count, as its specification says: the list would be in the working folder.
    """
    variable = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if variable.is_absolute():
        return variable / "hydrant" / "trusted.json"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".config" / "hydrant" / "trusted.json" if home.is_absolute() else None


def _write(projects: dict[str, list[str]]) -> None:
    file = _list_file()
    if file is None:
        raise ConfigError("XDG_CONFIG_HOME", "you have no home folder", remedy="set it to a folder of yours")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, json.dumps({"projects": dict(sorted(projects.items()))}, indent=2) + "\n")
        file.chmod(0o600)
    except OSError as error:
        raise ConfigError("", f"{file} cannot be written ({error.strerror})") from error


def _origin(package: str) -> Path | None:
    """Return the real path of the file that `import package` would run; None if there is none. Imports nothing."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # ValueError: a loaded module without a specification
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None


def _own_files(root: Path, package: str) -> Iterator[Path]:
    """Yield the files that may be the package of a project: at the root or in `src`, and no links."""
    for folder in (root, root / "src"):
        yield from (folder / package / "__init__.py", folder / f"{package}.py")


CONSENT_VARIABLE = "HYDRANT_ALLOW_TARGETS"
"""The environment variable that lists, separated by commas, the packages that config files may name."""


def check_consent(packages: object, words: Iterable[str]) -> None:
    """Refuse packages of `allow_targets` that only a config file names, because the user has to name them.

    `packages` is the value of `allow_targets`, `words` are the overrides of the command line.

    Raises:
        ConfigError: A package is neither on the command line nor in the variable HYDRANT_ALLOW_TARGETS, nor a package
            of the working folder that the user trusts.
    """
    if not packages or "allow_targets" in keys_set_by(words):
        return
    consented = [*consented_packages(), *working_project().packages]
    names = [str(package) for package in packages] if isinstance(packages, list) else [str(packages)]
    if refused := [name for name in names if name not in consented]:
        message = f"a config file requests to run code of {', '.join(map(shown, refused))}"
        words = [
            shlex.quote(f"allow_targets=[{','.join(names)}]"),
            f"{CONSENT_VARIABLE}={shlex.quote(','.join(names))}",
        ]
        remedy = f"add {words[0]} to the command line, or set {words[1]}"
        if all(map(could_be_trusted, refused)):
            remedy += ". If this folder is your project, trust it once: hydrant trust"
        elif roots := [root for root, known in trusted_projects().items() if {*refused} <= {*known}]:
            remedy += f", or run it in the folder of your trusted project: {' or '.join(map(quoted, roots))}"
        raise ConfigError("allow_targets", message, remedy=f"If you trust it, {remedy}")


def allows_own_code(words: Iterable[str]) -> bool:
    """Return whether code of the working folder may run: the user trusts this project, or allows packages.

    `words` are the overrides of the command line.

    Raises:
        ConfigError: the list of trusted projects is damaged.
    """
    return "allow_targets" in keys_set_by(words) or bool(consented_packages()) or working_project().is_trusted


def import_from_working_folder() -> None:
    """Let Python find modules in the working folder, after the standard library and the installed packages.

    So a file such as random.py replaces none of them.
    """
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)


def consented_packages() -> list[str]:
    """Return the packages that the environment variable allows."""
    return [package for package in os.environ.get(CONSENT_VARIABLE, "").split(",") if package]


def keys_set_by(words: Iterable[str]) -> set[str]:
    """Return the keys that the overrides of a command line set."""
    return {word.partition("=")[0].lstrip("+") for word in words}
