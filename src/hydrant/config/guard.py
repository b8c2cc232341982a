"""What Hydra itself would call for a config, refused before it does: its callbacks, loggers and plugins.

Hydra acts on the `hydra` node of a config while it composes, long before a run's own targets are checked, and any
config file may set that node.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, OmegaConf

from hydrant.config.targets import check_consent, lies_under, locate
from hydrant.errors import ConfigError, shown

_SWEEPERS = ("hydra_plugins.hydrant_sweeper", "hydra_plugins.hydrant_optuna",
             "hydra._internal.core_plugins.basic_sweeper", "optuna.samplers", "optuna.pruners")  # fmt: skip
_LAUNCHERS = ("hydra_plugins.hydrant_launchers", "hydra._internal.core_plugins.basic_launcher")
_LOGGING = ("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler", "logging.Formatter",
            "ext://sys.stdout", "ext://sys.stderr",
            "${hydra.runtime.output_dir}/${hydra.job.name}.log")  # fmt: skip
"""The last is Hydra's own file: into another, a config could write a program, by a format of its choice."""
_ALLOWED = {
    "callbacks": ("hydrant.train.HydraNotes", "hydra.experimental.callbacks"),
    "sweeper": _SWEEPERS,
    "launcher": _LAUNCHERS,
    "job_logging": _LOGGING,
    "hydra_logging": _LOGGING,
}
"""What Hydra may call for each part of its node."""

_VARIABLES = ("TORCH_LOGS",)
"""What a config file may set in the environment: it names no code."""

_CALLED = ("_target_", "()", "class", "filename")
"""Keys whose value Hydra or Python's logging imports and calls, or writes to."""

_WHOLE = re.compile(r"\$\{(?!hydra[.:](job|run|runtime|sweep)\.[\w.]+\}$).*\}", re.DOTALL)
"""A value that stands for whatever lies elsewhere in the config, perhaps a node."""


@contextmanager
def guarding_hydra(words: Sequence[str]) -> Generator[None]:
    """While it lasts, whatever Hydra composes is checked before Hydra acts on it; `words` are the command line's."""
    methods = {name: getattr(ConfigLoaderImpl, name) for name in ("load_configuration", "load_sweep_config")}
    for name, method in methods.items():
        setattr(ConfigLoaderImpl, name, _checked(method, words))
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(ConfigLoaderImpl, name, method)


def _checked(method: Callable[..., DictConfig], words: Sequence[str]) -> Callable[..., DictConfig]:
    @functools.wraps(method)
    def checked(*arguments: Any, **options: Any) -> DictConfig:
        config = method(*arguments, **options)
        _check(config, words)
        return config

    return checked


def _check(config: DictConfig, words: Sequence[str]) -> None:
    """Refuse a `hydra` node that would run code, but what `allow_targets` names.

    Raises:
        ConfigError: names the key.
    """
    raw: Any = OmegaConf.to_container(config, resolve=False)
    packages = raw.get("allow_targets")
    check_consent(packages, words)
    trusted = tuple(map(str, packages)) if isinstance(packages, list) else ()
    hydra: Mapping[str, Any] = raw.get("hydra") or {}
    given = {word.partition("=")[0].lstrip("+") for word in words}
    for name in hydra.get("job", {}).get("env_set") or ():
        key = f"hydra.job.env_set.{name}"
        if name not in _VARIABLES and not given & {key, "hydra.job.env_set"}:
            told = "is not taken from a config file, as a variable may name code to load; give it on the command line"
            raise ConfigError(key, told)
    if not re.fullmatch(r"[\w.-]+", title := str(hydra.get("job", {}).get("name"))):
        raise ConfigError(
            "hydra.job.name", f"{shown(title)} is no name of a file; use letters, digits, '.', '_' and '-'"
        )
    for name, allowed in _ALLOWED.items():
        for key, value in _called(hydra.get(name), f"hydra.{name}"):
            if (
                name == "launcher"
                and lies_under(value, ("hydra_plugins",))
                and not lies_under(value, allowed)
            ):
                told = f"{shown(value)} would compose each config again where its job runs, perhaps another one by then"
                raise ConfigError("hydra/launcher", f"{told}; use local, joblib, ray or slurm")
            if not (_is_allowed(value, key, allowed) or lies_under(value, trusted)):
                told = f"{shown(value)} is not allowed, as Hydra would call it or write to it"
                raise ConfigError(
                    key, f"{told}. If you trust it, add its package: 'allow_targets=[my_package]'"
                )


def _is_allowed(value: Any, key: str, allowed: Sequence[str]) -> bool:
    """Whether a value is among these names, or a class that these packages define: what they import is not theirs."""
    if value in _LOGGING:
        return allowed is _LOGGING
    if allowed is _LOGGING or not lies_under(value, allowed):
        return False
    found = locate(value, key)
    return inspect.isclass(found) and lies_under(f"{found.__module__}.{found.__qualname__}", allowed)


def _called(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """(key, value) of all that would be imported and called, or might stand for such."""
    if isinstance(value, str) and (value.startswith("ext://") or _WHOLE.fullmatch(value)):
        yield key, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        if name in _CALLED and item is not None:
            yield f"{key}.{name}", item
        else:
            yield from _called(item, f"{key}.{name}")
