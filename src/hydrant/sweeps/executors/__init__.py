"""Where the units of a sweep run, in processes of their own: a class that `hydra.launcher` names decides it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant.config.error_messages import as_config_error
from hydrant.config.hydra_guard import built, class_of, is_basic_launcher
from hydrant.errors import shown
from hydrant.runs.folder import is_run_folder
from hydrant.safety.targets import exporting_packages, lies_under
from hydrant.sweeps.executors.base import Executor
from hydrant.sweeps.executors.local import Sequential
from hydrant.sweeps.plan import usable_plan
from hydrant.terminal.console import notice, relative


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


def cancel(folder: Path) -> list[str]:
    """Let the queues that may have jobs of a sweep cancel them, or that of one of its runs; return what they cancelled.

    The sweep records the classes of its launchers that have a queue. Only those of installed extensions are asked.

    Raises:
        CannotStop: a queue refuses it.
    """
    sweep, cancelled = folder.parent if is_run_folder(folder) else folder, list[str]()
    for path in usable_plan(sweep)[0].queues:
        if lies_under(path, exporting_packages()):
            cancelled += class_of(path, "hydra.launcher", "launcher", "cancel").cancel(folder)
        else:
            notice(f"{relative(sweep)}: {shown(path)} is not installed here, so its queue is not known")
    return cancelled
