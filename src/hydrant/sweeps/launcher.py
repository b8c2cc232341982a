"""The launcher of a sweep, which its config chooses: `hydra/launcher=local`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydrant.config.error_messages import as_config_error
from hydrant.config.hydra_guard import class_of, is_basic_launcher
from hydrant.sweeps.executors import Executor
from hydrant.sweeps.executors.local import Sequential
from hydrant.sweeps.stack_plan import Lanes, check_lanes

_KEY = "hydra.launcher"


@dataclass(frozen=True)
class Launcher:
    """Where the jobs of a sweep run, and the most that train together in one process."""

    executor: Executor
    lanes: Lanes = 1


def launcher_of(node: Mapping[str, Any]) -> Launcher:
    """Return the launcher that a checked `hydra.launcher` describes, ready to run jobs.

    Raises:
        ConfigError: it takes other arguments, or cannot run here.
    """
    if is_basic_launcher(node["_target_"]):
        return Launcher(Sequential())
    lanes = check_lanes(node.get("lanes", 1))
    arguments = {name: value for name, value in node.items() if name not in ("_target_", "lanes")}
    with as_config_error(_KEY, node):
        executor: Executor = class_of(node, _KEY, "launcher", "prepare", "run")(**arguments)
        executor.prepare()
    return Launcher(executor, lanes)
