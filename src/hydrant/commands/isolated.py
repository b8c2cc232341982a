"""Call a function with a config in a new process."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hydrant.errors import ConfigError
from hydrant.safety.targets import preload_paths
from hydrant.signals import Stopped
from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated
from hydrant.training.prepare.micro_batch import prepare_at_least

T = TypeVar("T")


def run_isolated(
    function: Callable[..., T],
    config: Mapping[str, Any],
    *arguments: Any,
    preload: Sequence[str] | None = None,
) -> T | ProcessDied:
    """Call `function(config, *arguments)` in a new process, which isolates crashes and global settings.

    In it, what is printed to stdout is discarded, and only errors are logged.

    Args:
        function: a module-level function.
        config: its first argument.
        arguments: its other arguments.
        preload: the paths of what the server of the processes imports first; by default those of the config.

    Returns:
        The result, or how the process died.

    Raises:
        ConfigError: the function raised it.
        Stopped: a signal arrived.
    """
    paths = preload_paths([config]) if preload is None else preload
    modules = [__name__, function.__module__, *paths]
    call = call_isolated(_call, (function, config, *arguments), preload=modules)
    if call.signum is not None:
        raise Stopped(128 + call.signum)
    if isinstance(call.result, ConfigError):
        raise call.result
    return call.result


def check_num_updates(config: Mapping[str, Any], num_updates: int) -> None:
    """Raise ConfigError if the config cannot run, or has fewer updates than `num_updates`.

    A process that dies raises no error here: it dies again in the measurement, which reports it.
    """
    run_isolated(_prepare, config, num_updates)


def _prepare(config: Mapping[str, Any], num_updates: int) -> None:
    prepare_at_least(config, num_updates)  # its plan cannot be pickled


def _call(function: Callable[..., T], *arguments: Any) -> T | ConfigError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a model prints is no part of a report
    logging.disable(logging.WARNING)
    try:
        return function(*arguments)
    except ConfigError as error:
        return error
