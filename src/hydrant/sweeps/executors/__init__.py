"""Where the units of a sweep run, in processes of their own: a class that `hydra.launcher` names decides it."""

from collections.abc import Mapping
from typing import Any

from hydrant.config.error_messages import as_config_error
from hydrant.config.hydra_guard import built, is_basic_launcher
from hydrant.sweeps.executors.base import Executor
from hydrant.sweeps.executors.local import Sequential


def executor_of(node: Mapping[str, Any], key: str = "hydra.launcher") -> Executor:
    """Return where the units of a sweep run, ready to run them.

    Args:
        node: a checked `hydra.launcher`, or one in it.
        key: where the node is.

    Raises:
        ConfigError: it takes other arguments, or cannot run here.
    """
    if is_basic_launcher(node["_target_"]):
        return Sequential()
    executor: Executor = built(node, key, "launcher", "prepare", "units", "run")
    with as_config_error(key, node):
        executor.prepare()
    return executor
