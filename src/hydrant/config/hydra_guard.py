"""Patch Hydra 1.3.8 so that it checks a config's `hydra` node before it acts on it.

While Hydra composes and prepares a run, it imports and calls what the `hydra` node names: callbacks, sweeper, launcher
and logging handlers. Any config file can set that node, and Hydra acts on it before the task function is called, so
`check_targets` would come too late. The patch wraps `ConfigLoaderImpl.load_configuration`.

tests/config/test_hydra_guard.py fails when plain Hydra no longer calls a config's callbacks before the task function:
then this module can be deleted.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydrant.errors import ConfigError, shown
from hydrant.safety.consent import RECEIVERS, check_consent, keys_set_by
from hydrant.safety.targets import lies_under, locate
from hydrant.safety.trust import working_project

_SWEEPERS = (
    "hydra_plugins.hydrant_sweeper",
    "hydra_plugins.hydrant_optuna",
    "hydra_plugins.hydrant_race",
    "optuna.samplers",
    "optuna.pruners",
)
_LAUNCHERS = ("hydra_plugins.hydrant_launchers", "hydra._internal.core_plugins.basic_launcher")
_LOGGING = ("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler", "logging.Formatter",
            "ext://sys.stdout", "ext://sys.stderr",
            # Hydra's own log file. Other files are refused: with a format of its choice, a config could write a program
            # into one.
            "${hydra.runtime.output_dir}/${hydra.job.name}.log")  # fmt: skip
"""What the logging configs of Hydra may create, and the streams and the file that they may write to."""

_ALLOWED = {
    "callbacks": ("hydrant.runs.folder_callback.FolderCallback",),
    "sweeper": _SWEEPERS,
    "launcher": _LAUNCHERS,
    "job_logging": _LOGGING,
    "hydra_logging": _LOGGING,
}
"""What Hydra may call for each key of the `hydra` node.

Hydra's own callbacks and its basic sweeper are not in it, because they write configs with their secrets.
"""

_VARIABLES = ("TORCH_LOGS",)
"""The environment variables that a config file may set, because their values name no code."""

_CALLED = ("_target_", "()", "class", "filename")
"""Keys whose value Hydra or Python's logging imports and calls, or opens for writing."""

_REFERENCE = re.compile(r"\$\{(?!hydra[.:](job|run|runtime|sweep)\.[\w.]+\}$).*\}", re.DOTALL)
"""Exactly one interpolation that is not ${hydra.job|run|runtime|sweep...}.

It may resolve to a node with a `_target_` elsewhere in the config."""

_Check = Callable[[DictConfig, Sequence[str]], None]


@contextmanager
def guard_hydra(words: Sequence[str], *, sends_results: bool = True) -> Generator[None]:
    """Check every config that Hydra composes before Hydra acts on it.

    Args:
        words: those of the command line.
        sends_results: also check who receives the results.
    """
    checks = (_check_receiver, _check_node) if sends_results else (_check_node,)
    load_configuration = ConfigLoaderImpl.load_configuration  # load_sweep_config calls it too
    ConfigLoaderImpl.load_configuration = _checked(load_configuration, words, checks)
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration = load_configuration


def _checked(
    method: Callable[..., DictConfig], words: Sequence[str], checks: Sequence[_Check]
) -> Callable[..., DictConfig]:
    @functools.wraps(method)
    def checked(*arguments: Any, **options: Any) -> DictConfig:
        config = method(*arguments, **options)
        for check in checks:
            check(config, words)
        return config

    return checked


def _check_node(config: DictConfig, words: Sequence[str]) -> None:
    """Refuse a `hydra` node that would run code which is not allowed here or in `allow_targets`, or write secrets.

    Raises:
        ConfigError: Names the key.
    """
    raw: Any = OmegaConf.to_container(config, resolve=False)
    packages = raw.get("allow_targets")
    check_consent(packages, words)
    trusted = tuple(map(str, packages)) if isinstance(packages, list) else ()
    hydra: Mapping[str, Any] = raw.get("hydra") or {}
    _check_job(hydra.get("job", {}), words)
    if hydra.get("output_subdir") is not None:
        message = (
            "needs null, because Hydra would write the config with its secrets there, before it is checked"
        )
        raise ConfigError("hydra.output_subdir", f"{message}; the run writes .hydra/ itself")
    for name, allowed in _ALLOWED.items():
        for key, value in _called_values(hydra.get(name), f"hydra.{name}"):
            is_plugin = lies_under(value, ("hydra_plugins",))
            if name == "launcher" and is_plugin and not lies_under(value, allowed):
                reason = "it composes each config again when its job starts; use local, ray or slurm"
                raise ConfigError("hydra/launcher", f"{shown(value)} is not allowed: {reason}")
            if not (_is_allowed(value, key, allowed) or _is_trusted(value, key, trusted)):
                message = f"{shown(value)} is not allowed, because Hydra would call it or write to it"
                remedy = "If you trust it, add its package: 'allow_targets=[my_package]'"
                raise ConfigError(key, f"{message}. {remedy}")


def _check_receiver(config: DictConfig, words: Sequence[str]) -> None:
    """Refuse a tracker's receiver, such as `tracker.entity`, that is neither on the command line nor in its variable.

    The config may contain values of the user's environment variables, which it reads with `oc.env`.
    """
    others: Any = config.get("trackers") or {}
    if not isinstance(others, DictConfig | dict) or not all(str(name).isidentifier() for name in others):
        raise ConfigError(
            "trackers", "needs names of letters, digits and '_', each with the settings of a tracker"
        )
    nodes = ["tracker", *(f"trackers.{name}" for name in others)]
    for key, variable in ((f"{node}.{name}", name) for node in nodes for name in RECEIVERS):
        try:
            receiver: Any = OmegaConf.select(config, key)
        except OmegaConfBaseException:  # it depends on values that Hydra sets later
            receiver = f"<{variable}>"
        variable = RECEIVERS[variable]
        if receiver in (None, os.environ.get(variable)) or key in keys_set_by(words):
            continue
        message = f"a config file sends the results to {shown(receiver)}; if you trust it"
        remedy = f"add {key}={receiver} to the command line, or set {variable}={receiver}"
        raise ConfigError(key, f"{message}, {remedy}")


def _check_job(job: Mapping[str, Any], words: Sequence[str]) -> None:
    """Check `hydra.job`: environment variables from config files, and the name that becomes a file name."""
    set_by_user = keys_set_by(words)
    for name in job.get("env_set") or ():
        key = f"hydra.job.env_set.{name}"
        if name not in _VARIABLES and not set_by_user & {key, "hydra.job.env_set"}:
            reason = "a variable may name code to load; set it on the command line"
            raise ConfigError(key, f"cannot be set in a config file, because {reason}")
    if not re.fullmatch(r"[\w.-]+", title := str(job.get("name"))):
        message = f"{shown(title)} is not a valid file name; use letters, digits, '.', '_' and '-'"
        raise ConfigError("hydra.job.name", message)


def _is_allowed(value: Any, key: str, allowed: Sequence[str]) -> bool:
    """Whether `value` is one of these names, or a class that one of these packages defines.

    A class that an allowed package only imports from elsewhere is not allowed.
    """
    if value in _LOGGING:
        return allowed is _LOGGING
    if allowed is _LOGGING or not lies_under(value, allowed):
        return False
    target = locate(value, key)
    return inspect.isclass(target) and lies_under(f"{target.__module__}.{target.__qualname__}", allowed)


def _is_trusted(value: Any, key: str, packages: Sequence[str]) -> bool:
    """Whether `value` lies in one of these packages. The package of a trusted working folder must be its own, see
    `trust`."""
    if not lies_under(value, packages):
        return False
    if (project := working_project()).named_by([value]):
        project.check_origin(value, key)
        project.check_definition(value, locate(value, key), key)
    return True


def _called_values(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of everything that would be imported and called, or may resolve to something that is."""
    if isinstance(value, str) and (value.startswith("ext://") or _REFERENCE.fullmatch(value)):
        yield key, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        if name in _CALLED and item is not None:
            yield f"{key}.{name}", item
        else:
            yield from _called_values(item, f"{key}.{name}")
