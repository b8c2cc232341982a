"""What the W&B SDK changes in this process: undone at the end of its use, or left out.

Each private part of the SDK, or of pydantic, says the version and the month in which it was seen.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

SERVICE = "WANDB_SERVICE"
"""The variable with the address of wandb-core, the SDK's background process. Child processes inherit it."""

_QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_QUIET": "true", "WANDB_SILENT": "true"}
_FAIL_FAST = {"WANDB_X_GRAPHQL_RETRY_MAX": "5", "WANDB_X_GRAPHQL_RETRY_WAIT_MAX_SECONDS": "4"}


@contextlib.contextmanager
def changed_process(*, fail_fast: bool) -> Generator[None]:
    """Set variables for wandb-core. Those that the user has set keep their values.

    Without WANDB_ERROR_REPORTING=false, wandb-core reports to its vendor, which takes 10 s at exit where a firewall
    drops the packets. Without WANDB_SILENT, the SDK fetches the account's name without a time limit. A wandb-core of a
    parent process is not used, because it may be dead. Without a cache, wandb-core prints its log.
    """
    defaults = _QUIET | (_FAIL_FAST if fail_fast else {}) | ({} if _has_cache() else _temporary_cache())
    service = os.environ.pop(SERVICE, None)
    exit_function, excepthook = sys.exit, sys.excepthook
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in (SERVICE, *added):
            os.environ.pop(name, None)
        if service is not None:
            os.environ[SERVICE] = service
        _remove_exit_hooks(exit_function, excepthook)


def _has_cache() -> bool:
    """Return whether wandb-core finds a cache folder that can be written."""
    if "WANDB_CACHE_DIR" in os.environ:
        return True
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", ""), ".cache"))
    if not cache.is_absolute():
        return False
    logs = cache / "wandb" / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(logs, os.W_OK)


@functools.cache
def _temporary_cache() -> dict[str, str]:
    """Return the variable of a cache folder for the sessions of this process; none if no folder can be made.

    wandb-core uses it beyond the session that starts it. At exit, that is ended first: its hook is registered later.
    """
    try:
        folder = tempfile.mkdtemp(prefix="wandb-")
    except OSError:
        return {}
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"WANDB_CACHE_DIR": folder}


def _remove_exit_hooks(exit_function: object, excepthook: object) -> None:
    """Remove the hooks that W&B 0.31 puts around `sys.exit` and `sys.excepthook` when it starts wandb-core.

    They record the exit status for runs that are never finished, and W&B never removes them. Hooks of other libraries
    and earlier hooks of W&B stay.
    """
    if "wandb.sdk.lib.exit_hooks" not in sys.modules:
        return
    from wandb.sdk.lib.exit_hooks import ExitHooks

    while sys.exit is not exit_function and isinstance(
        hooks := getattr(sys.exit, "__self__", None), ExitHooks
    ):
        sys.exit = hooks._orig_exit  # pyright: ignore[reportPrivateUsage]
    while sys.excepthook is not excepthook and isinstance(
        hooks := getattr(sys.excepthook, "__self__", None), ExitHooks
    ):
        sys.excepthook = hooks._orig_excepthook or sys.__excepthook__  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def without_field_descriptions() -> Generator[None]:
    """Keep pydantic from reading the source of W&B's classes for the descriptions of their fields, which nobody sees.

    That is a third of the import of wandb. Classes that other threads define meanwhile have their descriptions.
    Written against pydantic 2.14 in November 2026.
    """
    try:
        fields: Any = importlib.import_module("pydantic._internal._fields")
        read = fields._update_fields_from_docstrings
    except (ImportError, AttributeError):  # of another version
        yield
        return
    own = threading.get_ident()

    def read_of_others(*args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != own:
            read(*args, **kwargs)

    fields._update_fields_from_docstrings = read_of_others
    try:
        yield
    finally:
        fields._update_fields_from_docstrings = read


def set_up() -> Any:
    """Start wandb-core, if it does not run, and return the SDK's settings and connection."""
    import wandb

    turn_off_analytics()
    return wandb.setup()


def turn_off_analytics() -> None:
    """Let the SDK send nothing about its own use and errors, for the rest of this process.

    Otherwise its start, also offline, imports requests for that, which takes a twentieth of a second. And where
    wandb-core cannot start, its report of that waits forever for a lock that its caller holds. Written against W&B 0.31
    in November 2026.
    """
    with contextlib.suppress(ImportError, AttributeError):  # of another version
        importlib.import_module("wandb.analytics.opentelemetry.opentelemetry_proxy").disable()


def _look_for_nothing(run: object) -> None: ...


@contextlib.contextmanager
def without_launch() -> Generator[None]:
    """Keep `wandb.init` from importing W&B Launch, which takes half a second, for inputs that were staged there.

    Written against W&B 0.31 in November 2026. Who stages inputs has imported Launch before.
    """
    from wandb.sdk.wandb_run import Run

    name = "_detect_and_apply_job_inputs"
    look = None if "wandb.sdk.launch" in sys.modules else getattr(Run, name, None)
    if look is None:
        yield
        return
    setattr(Run, name, _look_for_nothing)
    try:
        yield
    finally:
        setattr(Run, name, look)


def stop_core() -> None:
    """Stop wandb-core, so that the next run starts a new one. Never raises: the SDK exits where wandb-core has died."""
    with contextlib.suppress(Exception, SystemExit):
        import wandb

        wandb.teardown()
