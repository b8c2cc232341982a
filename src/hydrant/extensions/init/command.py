"""`init`: write the files of a new project, and trust its package."""

import importlib.util
import json
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydrant.commands.trust import described
from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError, first_few, naming
from hydrant.installation import NAME, requirement, version
from hydrant.records.answers import Answer
from hydrant.safety.trust import trust, trusted_projects
from hydrant.terminal.console import notice, tell

_TEMPLATE = Path(__file__).parent / "template"
_SUFFIX = ".template"
_PACKAGE_FOLDER = "package"  # of the template; its name in a project is the project's
_MAX_NAMED = 3  # files in a message
_NAME = re.compile(r"\{\{(\w+)\}\}")


class Init(Answer):
    """The project that was written.

    Attributes:
        package: Its Python package.
        files: What was written, relative to the folder.
        trusted: The packages that configs may name there; empty if the folder could not be trusted.
        first: The command that trains the first run, in the folder.
    """

    folder: str
    package: str
    files: Sequence[str]
    trusted: Sequence[str]
    first: str


def main(arguments: Sequence[str]) -> int:
    """Write a project into a folder and return the exit status."""
    _, folders = Flags("init").split(arguments)
    if len(folders) != 1:
        raise ConfigError("", "needs one folder for the project", remedy=": hydrant init my_project")
    root = Path(folders[0])
    package = package_name(root)
    files = write_project(root, package)
    trusted = _trust(root, package)
    first = "hydrant train experiment=first name=first"
    lines = [f"written: {root}, a project with the package {package}"]
    lines += [f"trusted: {described(root.resolve(), trusted)}"] if trusted else []
    enter = [] if root.resolve() == Path.cwd() else [f"  cd {root}"]
    lines += ["next:", *enter, f"  {first}", "  README.md has the others, and how to install the project"]
    names = [str(file.relative_to(root)) for file in files]
    content = {"folder": str(root), "package": package, "files": names, "trusted": trusted, "first": first}
    tell("\n".join(lines), content)
    return 0


def _trust(root: Path, package: str) -> list[str]:
    """Trust the new package, and none that others have put into the folder before; return what is trusted there."""
    packages = {*trusted_projects().get(str(root.resolve()), ()), package}
    try:
        trust(root, packages)
    except ConfigError as error:  # the files are written
        notice(f"not trusted yet: {error}. Then run in {root}: hydrant trust")
        return []
    return sorted(packages)


def package_name(root: Path) -> str:
    """Return the name of the package of a project in this folder: the folder's, with `_` for what no name may have.

    Raises:
        ConfigError: there is no such name, or Python or another package has it.
    """
    folder = root.resolve().name
    name = re.sub(r"[-. ]+", "_", folder)
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        remedy = "use the letters a to z, digits and '_', and a letter first"
        raise ConfigError("", f"{folder!r} cannot be the name of a package", remedy=remedy)
    is_installed = name in sys.stdlib_module_names or _is_importable_elsewhere(name, root.resolve())
    if is_installed or name in {"conf", "tests", "test", "src", "outputs", "multirun"}:
        owner = "a package that is installed already" if is_installed else "another folder in a project"
        raise ConfigError("", f"{name!r} is the name of {owner}", remedy="choose another name")
    return name


def _is_importable_elsewhere(name: str, root: Path) -> bool:
    """Whether a package is installed. Folders in the working folder, such as that of the project, do not count."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # a folder without __init__.py
        return False
    return not Path(spec.origin).resolve().is_relative_to(root)


def write_project(root: Path, package: str) -> list[Path]:
    """Write the files of the template into a folder, which need not be empty; return them.

    Raises:
        ConfigError: one of the files is there already; nothing was written. Or a file cannot be written.
    """
    values = {
        "package": package,
        "distribution": package.replace("_", "-"),
        "requirement": json.dumps(requirement()),
        "source": _source(requirement()),
        "version": version(),
    }
    files = {root / path: text for path, text in rendered(values).items()}
    if present := [str(file) for file in files if file.exists() or file.is_symlink()]:
        message = f"{first_few(present, _MAX_NAMED)} would be overwritten"
        raise ConfigError("", message, remedy="choose another folder, or move them")
    try:
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with naming(file):
                file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("", f"{error.filename} cannot be written ({error.strerror})") from error
    return list(files)


def _source(requirement: str) -> str:
    """Return a comment that says where Hydrant comes from, and what to do if only this machine has it."""
    if "file://" in requirement:
        return f"on this machine only: for others, name {NAME}=={version()} or {NAME} @ git+https://..."
    return f"the Hydrant that made this project, or {NAME} @ git+https://..."


def rendered(values: Mapping[str, str]) -> dict[Path, str]:
    """Return the files of a project, by their paths in it. `{{name}}` is replaced by `values[name]`."""
    files: dict[Path, str] = {}
    for source in sorted(_TEMPLATE.rglob(f"*{_SUFFIX}")):
        folder, *rest = source.relative_to(_TEMPLATE).with_suffix("").parts
        path = Path(values["package"] if folder == _PACKAGE_FOLDER else folder, *rest)
        files[path] = _NAME.sub(lambda name: values[name[1]], source.read_text(encoding="utf-8"))
    return files
