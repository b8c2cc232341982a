"""`hydrant.compose`: the config of a run, composed and checked."""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from hydrant.config.check import check
from hydrant.config.command_line import refuse_sweep
from hydrant.config.compose import HYDRA_LOCK, compose_run, without_hydra
from hydrant.config.job_folders import begin_run
from hydrant.errors import ConfigError
from hydrant.files.plain_values import check_value
from hydrant.interface import known_arguments
from hydrant.runs.job import Job, job_of, place
from hydrant.runs.log_setup import process_settings
from hydrant.terminal.console import relative


class Config(Mapping[str, Any]):
    """The config of a run, read like a dict: `config["optimizer"]["lr"]`. `compose` makes it.

    It cannot be changed. To change a key, compose again: `hydrant.compose([*config.overrides, "seed=1"])`.

    Args:
        composed: as Hydra composed it, with the node `hydra`.

    Raises:
        ConfigError: a key or a value is wrong; `key` names it.
    """

    def __init__(self, composed: DictConfig) -> None:
        self._composed = composed
        refuse_sweep(composed.hydra.runtime.choices, composed.hydra.overrides.hydra)
        self._resolved = check(without_hydra(composed))
        self.overrides: tuple[str, ...] = tuple(map(str, composed.hydra.overrides.task))
        """The overrides that it was composed with, without those of `hydra`."""

    def __getitem__(self, key: str) -> Any:
        return _frozen(self._resolved[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._resolved)

    def __len__(self) -> int:
        return len(self._resolved)

    def __str__(self) -> str:
        return OmegaConf.to_yaml(OmegaConf.create(self._resolved))

    def __repr__(self) -> str:
        return f"Config({', '.join(self.overrides)})"

    def job(self, folder: str | Path | None, nodes: Mapping[str, Mapping[str, Any]]) -> Job:
        """Return the job that trains this config.

        Args:
            folder: the run folder; by default that of the same command: outputs/<name>, or a new one.
            nodes: replace whole config groups, before the others refer to them.
        """
        composed = copy.deepcopy(self._composed)
        with open_dict(composed):
            for group, node in nodes.items():
                composed[group] = node
                composed.hydra.runtime.choices[group] = str(node["type"]).rpartition(".")[2]
        begin_run()
        job = job_of(composed, place(composed, folder=folder))
        path = job.folder if folder is None else Path(folder)
        return replace(job, folder=path, call=f"hydrant.train(config, folder={relative(path)!r})")


@known_arguments
def compose(overrides: Sequence[str] = (), *, conf: str | Path | None = None) -> Config:
    """Compose a config like the command line: `hydrant.compose(["optimizer=sgd", "seed=1"])`.

    Args:
        overrides: as after `hydrant train`.
        conf: your conf folder; by default `$HYDRANT_CONF` or `./conf`, if there is one.

    Threads may call it at once; one of them composes at a time.

    Raises:
        ConfigError: a key or a value is wrong; `key` names it.

    >>> config = compose(["optimizer=sgd", "optimizer.lr=0.2"])
    >>> config["optimizer"]["lr"], config["data"]["num_classes"]
    (0.2, 10)
    """
    check_value("overrides", Sequence[str], overrides)
    if conf is not None and not Path(conf).is_dir():
        remedy = "give the folder of your config groups"
        raise ConfigError("conf", f"{conf} is not a folder", remedy=remedy)
    with HYDRA_LOCK, process_settings():  # which restores the variable
        if conf is not None:
            os.environ["HYDRANT_CONF"] = str(conf)
        return Config(compose_run(overrides))


def _frozen(value: Any) -> Any:
    """Return a value whose parts cannot be changed: a change would not reach the run."""
    if isinstance(value, dict):
        return MappingProxyType({name: _frozen(item) for name, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
