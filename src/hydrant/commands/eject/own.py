"""Parts of the user's own: which source is copied, and which cannot be."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from pathlib import Path
from typing import Any

from hydrant.commands.eject import couplings
from hydrant.errors import ConfigError


@functools.cache
def is_of_user(module: str) -> bool:
    """Return whether a module is the user's own code: neither Hydrant's nor of an installed package."""
    top = module.partition(".")[0]
    if not top or top == "hydrant" or top in sys.stdlib_module_names:
        return False
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    places = (
        [] if spec is None else [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
    )
    return bool(places) and not {"site-packages", "dist-packages"} & set(Path(str(places[0])).parts)


def check_source(key: str, path: str) -> None:
    """Check that the source of an own part can be copied.

    Raises:
        ConfigError: it is a lambda, or its module has no source.
    """
    target: Any = pkgutil.resolve_name(path)
    if getattr(target, "__name__", "") == "<lambda>":
        message = f"{path} is a lambda; define it by def, so that it has a name in the ejected file"
        raise ConfigError(key, message)
    module = getattr(target, "__module__", None) or ""
    try:
        inspect.getsource(importlib.import_module(module))
    except (OSError, TypeError, ValueError, ImportError) as error:
        message = f"the source of {path} cannot be read ({error}); put it into a .py file"
        raise ConfigError(key, message) from error


def without_helpers(call: ast.Call) -> str | None:
    """Return what stands for calls of functions of Hydrant that change no samples; None for other calls."""
    match call:
        case ast.Call(func=ast.Name(id=couplings.CHECK_SHAPES), args=[first, *_]):
            return ast.unparse(first)
        case ast.Call(func=ast.Name(id=couplings.TENSOR_READER)):
            return "None"
        case _:
            return None
