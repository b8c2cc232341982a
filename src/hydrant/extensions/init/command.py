"""`init`: write the files of a new project, and trust its package.

The project has an example with each kind of part; with `--empty` none, and with `--from` the parts of a file.
"""

import importlib.util
import inspect
import json
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hydrant.commands.trust import described
from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError, first_few, naming, typed_line
from hydrant.installation import NAME, requirement, version
from hydrant.records import Answer
from hydrant.safety.trust import trust, trusted_projects
from hydrant.terminal.console import notice, tell

_TEMPLATE = Path(__file__).parent / "template"
_SUFFIX = ".template"
_PACKAGE_FOLDER = "package"  # of the template; its name in a project is the project's
_OF_EXAMPLE = re.compile(
    r"\n# Test:.*?(?=```)|^\| `(?:\{\{package|conf/[^e]).*?\n|^pytest\b.*?\n", re.MULTILINE | re.DOTALL
)
"""What README.md and AGENTS.md say of the example alone."""
_FIRST = Path("conf/experiment/first.yaml")
_EXPERIMENT = """# @package _global_
# Question: which optimizer is better?
# Run:      hydrant train --multirun experiment=first name=first optimizer=adamw,sgd seed=0,1
defaults:
{chosen}  - override /tracker: local # or wandb, tensorboard, mlflow: [wandb, tensorboard] is both
duration: 20ep
eval_every: 1ep
"""
_LEFT_OUT = "left out, because its default is no number, word or null"
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
    flags, folders = Flags("init", empty=False, **{"from": Path}).split(arguments)
    if len(folders) != 1:
        raise ConfigError("", "needs one folder for the project", remedy=": hydrant init my_project")
    root = Path(folders[0])
    package = package_name(root)
    file = vars(flags)["from"]
    own = {} if flags.empty else None if file is None else own_files(file, package)
    files = write_project(root, package, own)
    trusted = _trust(root, package)
    first = "hydrant train experiment=first name=first"
    lines = [f"written: {root}, a project with the package {package}"]
    lines += [f"trusted: {described(root.resolve(), trusted)}"] if trusted else []
    enter = [] if root.resolve() == Path.cwd() else [f"  cd {root}"]
    lines += [*_remarks(own or {}), "next:", *enter, f"  {first}"]
    lines += ["  README.md has the others, and how to install the project"]
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
    origin = getattr(importlib.util.find_spec(name), "origin", None)  # None for a folder without __init__.py
    is_elsewhere = origin is not None and not Path(origin).resolve().is_relative_to(root.resolve())
    is_installed = name in sys.stdlib_module_names or is_elsewhere
    if is_installed or name in {"conf", "tests", "test", "src", "outputs", "multirun"}:
        owner = "a package that is installed already" if is_installed else "another folder in a project"
        raise ConfigError("", f"{name!r} is the name of {owner}", remedy="choose another name")
    return name


def write_project(root: Path, package: str, own: Mapping[Path, str] | None = None) -> list[Path]:
    """Write the files of the template into a folder, which need not be empty; return them.

    Args:
        own: files in place of the example, by their paths in the project; None: the example.

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
    files = {root / path: text for path, text in rendered(values, own).items()}
    if present := [str(file) for file in files if file.exists() or file.is_symlink()]:
        message = f"{first_few(present)} would be overwritten"
        raise ConfigError("", message, remedy="choose another folder, or move them")
    try:
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with naming(file):
                file.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigError("", f"{error.filename} cannot be written ({error.strerror})") from error
    return list(files)


def _source(requirement: str) -> str:
    """Return a comment that says where Hydrant comes from, and what to do if only this machine has it."""
    if "file://" in requirement:
        return f"on this machine only: for others, name {NAME}=={version()} or {NAME} @ git+https://..."
    return f"the Hydrant that made this project, or {NAME} @ git+https://..."


def rendered(values: Mapping[str, str], own: Mapping[Path, str] | None) -> dict[Path, str]:
    """Return the files of a project, by their paths in it. `{{name}}` is replaced by `values[name]`."""
    files: dict[Path, str] = {}
    for source in sorted(_TEMPLATE.rglob(f"*{_SUFFIX}")):
        folder, *rest = source.relative_to(_TEMPLATE).with_suffix("").parts
        if own is not None and folder in (_PACKAGE_FOLDER, "conf", "tests") and rest != ["__init__.py"]:
            continue
        text = source.read_text(encoding="utf-8")
        text = text if own is None else _OF_EXAMPLE.sub("", text)
        path = Path(values["package"] if folder == _PACKAGE_FOLDER else folder, *rest)
        files[path] = _NAME.sub(lambda name: values[name[1]], text)
    return files if own is None else {**files, _FIRST: _experiment(own), **own}


def own_files(file: Path, package: str) -> dict[Path, str]:
    """Return a file of the user's as a module of the package, and an option for each part that it defines, by path.

    A `Module` is an option of `model`, a `Dataset` of `data`, a function or a class whose name ends with `loss` of
    `task`. Arguments become keys: `???` without a default, unless models take them from the data. One whose default is
    no number, word or null is left out.

    Raises:
        ConfigError: the file cannot be imported.
    """
    name = f"{package}.{file.stem}"
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        text = file.read_bytes().decode()
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None, "its name does not end with .py"
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError("--from", f"{file} cannot be imported: {typed_line(error)}") from error
    files = {Path(package, file.name): text}
    for part in vars(module).values():
        if getattr(part, "__module__", "") == name and callable(part) and (option := _option(part)):
            stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part.__name__).lower()
            files[Path("conf", option[0], f"{stem}.yaml")] = option[1]
    return files


def _option(part: Any) -> tuple[str, str] | None:
    """Return the group and the text of the option for a class or a function; None for what is no part."""
    from torch import nn  # late, because the example needs no torch
    from torch.utils.data import Dataset

    is_class, name = isinstance(part, type), f"{part.__module__}.{part.__name__}"
    bases = {"model": nn.Module, "data": Dataset} if is_class else {}
    of_base = next((group for group, base in bases.items() if issubclass(part, base)), "")
    if not (group := "task" if name.lower().endswith("loss") else of_base):
        return None
    named = [p for p in inspect.signature(part).parameters.values() if "VAR" not in p.kind.name]
    of_data = {key: f"${{data.{key}}}" for key in ("input_shape", "num_classes") if group == "model"}
    lacking: dict[str, Any] = {p.name: of_data.get(p.name, "???") for p in named if p.default is p.empty}
    values = {p.name: lacking.get(p.name, p.default) for p in named[0 if is_class else 2 :]}
    kept = {k: value for k, value in values.items() if isinstance(value, bool | int | float | str | None)}
    node = {"_target_": name, **({} if is_class else {"_partial_": True}), **kept}
    content = {
        "model": node,
        "data": {"defaults": ["dataset"], "train": node, "val": None, "val_ratio": 0.2},
        "task": {"defaults": ["supervised"], "loss": node},
    }[group]
    about = inspect.cleandoc(part.__doc__ or name).partition("\n")[0]
    left_out = [f"# {key}: {_LEFT_OUT}\n" for key in values if key not in kept]
    comments = "".join([*left_out, _HINTS.get(group, "")])
    return group, f"# {about}\n{yaml.safe_dump(content, sort_keys=False)}{comments}"


_HINTS = {
    "data": "# val: samples of train, with its augmentation; a node like train validates on others\n"
    "# in_memory: true reads each item once: then it is never augmented anew, and a sweep can be stacked\n",
    "task": "# classification instead of supervised also measures the accuracy of classes\n",
}
"""Comments below an option."""


def _remarks(own: Mapping[Path, str]) -> list[str]:
    """Return what to say of the user's options: what the first experiment takes, and which arguments lack values."""
    lines = list[str]()
    for group, (first, *others) in _by_group(own).items():
        more = f"; to take another, add {' or '.join(f'{group}={name}' for name in others)}" if others else ""
        lines.append(f"experiment=first takes {group}={first}{more}")
    module, options = next(iter(own.values()), ""), [*own.items()][1:]
    defined = re.findall(r"^(?:def|class) ([a-zA-Z]\w*)", module, re.MULTILINE)
    if unused := [name for name in defined if not any(f".{name}\n" in text for _, text in options)]:
        lines.append(f"no option is made of {', '.join(unused)}; a loss needs a name that ends with loss")
    for path, text in options:
        text = text.partition("\n")[2].replace("???", "needs a value before the first command")
        text = re.sub(r"(\$.data.*)", r"needs \1: an attribute of the Dataset, or give this key", text)
        lines += [f"{path}: {said}" for said in re.findall(r"\w+: (?:needs|left out,) .*", text)]
    return lines


def _by_group(own: Mapping[Path, str]) -> dict[str, list[str]]:
    options = [*own][1:]  # the first is the module
    groups = sorted({path.parent.name for path in options})
    return {group: [path.stem for path in options if path.parent.name == group] for group in groups}


def _experiment(own: Mapping[Path, str]) -> str:
    """Return an experiment with the first option of each group."""
    chosen = [f"  - override /{group}: {first}\n" for group, (first, *_) in _by_group(own).items()]
    return _EXPERIMENT.format(chosen="".join(chosen))
