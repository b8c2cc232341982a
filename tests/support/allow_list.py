"""Lists what a config may call in libraries, and the arguments that may name a file, an address, code or a command.

python tests/support/allow_list.py     prints, for the installed versions, those of them that are accepted
"""

import importlib
import inspect
import pkgutil
import re
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hydrant.config.instantiate import check_signatures
from hydrant.errors import ConfigError
from hydrant.safety.targets import LIBRARIES, check_targets

RISKY = re.compile(
    r"path|dir$|dirs$|file|url|uri|folder|root|repo|hub|checkpoint|ckpt|cache|command|cmd|(?<!de)(?<!en)code|script"
    r"|source|string|backend|pretrained|weights|cfg|import|download|load|name$|hook|module|pickle|exec|eval",
    re.IGNORECASE,
)
"""Arguments that may name a file, an address, code or a command."""

HARMLESS = {
    "bbox_reg_weights": "numbers",
    "cfg": "the layers of a model of timm",
    "class_name": "of the module that torchvision's DualGraphModule imitates",
    "conv_cfg": "the layers of a model of timm",
    "cpp_module": "an object of a torch extension, which no config can create",
    "default_hook_type": "of optimizers, in the class that records them",
    "module": "a module, which a _target_ creates",
    "modules": "modules, which _target_s create",
    "name": "of a parameter, or of Inception's only kind in torchmetrics",
    "param_to_hook_all_reduce": "a parameter, which no config can create",
    "state_name": "of an attribute of the metric",
    "transformer_cfg": "the layers of a model of timm",
    "weights": "linear or quadratic, or numbers: torchvision's are objects, which no config can create",
}
"""Arguments that match `RISKY`, and take the values below, but name nothing that is loaded or run."""

EVIL = ("evil", {"file": "evil.pth", "url": "http://evil/x.pth"}, ["evil.pth"])
"""Values of risky arguments."""

DANGEROUS = (
    "system", "popen", "Popen", "run", "call", "check_output", "load", "loads", "import_module", "find_spec",
    "load_state_dict_from_url", "download_url_to_file", "urlopen", "urlretrieve", "open", "eval", "exec", "compile",
    "rmtree", "remove", "unlink", "copyfile", "move", "Path", "CDLL", "spawn", "run_path", "run_module",
)  # fmt: skip
"""Functions of other modules that load files or run code; a library's module may have imported such a module."""


def module_names() -> list[str]:
    """Return every module of the allowed packages whose name has no leading `_`."""
    names = list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in LIBRARIES:
            root = importlib.import_module(package)
            below = pkgutil.walk_packages(root.__path__, f"{package}.", onerror=lambda _: None)
            names += [package, *(module.name for module in below if "._" not in module.name)]
    return names


def content(module_name: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, object) of everything public in a module and in its classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importlib.import_module(module_name)
        except Exception:  # it needs a package that is not installed, or another machine
            return
        for name in _public(module):
            value = getattr(module, name, None)
            yield f"{module_name}.{name}", value
            if inspect.isclass(value) and value.__module__ == module_name:
                for inner in _public(value):
                    yield f"{module_name}.{name}.{inner}", getattr(value, inner, None)


def _public(owner: Any) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


def targets_in(module_name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (path, target) of every public callable that a config could name through a module.

    Those of other modules that it has imported are the dangerous ones.
    """
    for path, value in content(module_name):
        if callable(value):
            yield path, value
        elif isinstance(value, types.ModuleType):
            for name in DANGEROUS:
                if callable(function := getattr(value, name, None)):
                    yield f"{path}.{name}", function


def risky_nodes(target: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yield arguments for a target that may make it load a file or run code, by name and by position."""
    try:
        parameters = list(inspect.signature(target).parameters)
    except (ValueError, TypeError):
        return
    for index, name in enumerate(parameters):
        if RISKY.search(name) and name not in HARMLESS:
            for value in EVIL:
                yield {name: value}
                yield {"_args_": [*[None] * index, value]}


def is_accepted(target: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a config may call a target with these arguments."""
    node = {"_target_": target, "_partial_": True, **arguments}
    try:
        check_targets({"allow_targets": [], "part": node})
        check_signatures({"part": node})
    except ConfigError:
        return False
    return True


def accepted_risks(module_name: str) -> Iterator[str]:
    """Yield what a config may call through a module with a file, an address, code or a command."""
    from torchvision.models import list_models

    for path, target in targets_in(module_name):
        if not is_accepted(path, {}):
            continue
        if not inspect.isclass(target) and target.__name__ not in list_models():
            yield f"{path}: a function"
        yield from (f"{path}({node})" for node in risky_nodes(target) if is_accepted(path, node))


if __name__ == "__main__":
    for module_name in module_names():
        for risk in accepted_risks(module_name):
            print(risk)
