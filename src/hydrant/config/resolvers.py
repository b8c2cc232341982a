"""The OmegaConf resolvers that configs use, such as `${run_folder:outputs,${name}}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import omegaconf
from omegaconf import DictConfig, OmegaConf

from hydrant.config.job_folders import JobFolders
from hydrant.config.schema import check_name
from hydrant.errors import ConfigError
from hydrant.imports.without_gc import import_without_gc
from hydrant.safety.targets import locate

_READERS = {
    "csv_input_shape": "hydrant.data.csv_layout.csv_input_shape",
    "csv_num_outputs": "hydrant.data.csv_layout.csv_num_outputs",
    "hugging_face_num_classes": "hydrant.data.hugging_face_splits.hugging_face_num_classes",
    "tokens_setting": "hydrant.data.token_splits.tokens_setting",
}
"""The resolvers that read files of data, by name. They are named by their paths, like a `_target_`, because the package
`data` is above this one. Each gets its node's parent as `_parent_`."""


def register_resolvers(folders: JobFolders | None = None) -> None:
    """Register the resolvers, replacing earlier ones. `folders`: those of the sweep that begins."""
    for function in (run_folder, class_folders, largest, unless):
        _register(function.__name__, function)
    for name, path in _READERS.items():
        _register(name, _imported(path))
    _register("job_slug", (folders or JobFolders()).name_of)


def _register(name: str, function: Callable[..., Any]) -> None:
    if omegaconf.__version__.startswith("2.3."):
        OmegaConf.register_new_resolver(name, function, replace=True)
    else:  # would also check the annotations
        register: Any = OmegaConf.register_resolver
        register(name, function, replace=True, annotation_validation="off")


def _imported(path: str) -> Callable[..., Any]:
    """Return a resolver that imports the function at a path when it is first used."""

    def resolve(*arguments: Any, _parent_: DictConfig) -> Any:
        with import_without_gc():
            function = locate(path, "")
        return function(*arguments, _parent_=_parent_)

    return resolve


def begin_run() -> None:
    """Let the next run without a name have a folder of its own."""
    _start_time.cache_clear()


def run_folder(root: str, name: str | None) -> str:
    """Return `outputs/lr_study` for a named run, else `outputs/<date>/<time>`."""
    if name is None:
        return f"{root}/{_start_time()}"
    check_name(str(name))
    return f"{root}/{name}"


@lru_cache
def _start_time() -> str:
    # Milliseconds, because a shell loop starts several runs in one second.
    return datetime.now().strftime("%Y-%m-%d/%H-%M-%S.%f")[:-3]


def unless(other: Any, default: Any) -> Any:
    """Return the default of a key that another key excludes: null if the other one has a value.

    `end_ratio: ${unless:${.gamma},0.01}` is 0.01, but null if the user gives gamma.
    """
    return default if other is None else None


def largest(value: Any) -> Any:
    """Return the largest of the numbers that a key takes one after the other; another value as it is.

    >>> largest({0: 64, 1000: 128}), largest(64)
    (128, 64)
    """
    if not isinstance(value, Mapping):
        return value
    return max((number for number in value.values() if isinstance(number, int)), default=None)


def class_folders(path: str) -> int:
    """Return the number of classes of an image folder: its subfolders that are not hidden.

    Raises:
        ConfigError: The folder does not exist.
    """
    folder = Path(path)
    if not folder.is_dir():
        message = f"{folder} is not a folder; it should hold one folder of images per class"
        raise ConfigError("data.root", message)
    return sum(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir())
