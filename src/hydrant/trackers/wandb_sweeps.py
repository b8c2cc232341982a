"""A W&B sweep as an agent sees it: it asks what to run, and tells what it runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hydrant.errors import ConfigError, first_line
from hydrant.trackers.wandb_access import obstacle

_PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Command:
    """What W&B wants of an agent. `kind` is `run`, `resume`, `stop` or `exit`; the last has no run."""

    kind: str
    run_id: str = ""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the sweep's parameters


class SweepAgent:
    """One agent of the sweep `entity/project/sweep`.

    Raises:
        ConfigError: there is none for this account, or W&B cannot be asked.
    """

    def __init__(self, path: str) -> None:
        entity, project, self.sweep_id = path.split("/")
        self.environment = {"WANDB_ENTITY": entity, "WANDB_PROJECT": project, "WANDB_SWEEP_ID": self.sweep_id}
        refusal = obstacle(_PROBE_SECONDS)
        if refusal is not None:
            raise ConfigError("SWEEP", f"{refusal}; log in with `wandb login`: W&B hands out the runs")
        import wandb
        from wandb.apis.public import sweeps

        # It says at every question that W&B does not answer, with a traceback. It asks again anyway.
        logging.getLogger(sweeps.__name__).addHandler(logging.NullHandler())
        where = {"entity": entity, "project": project}
        try:
            self._api = wandb.Api(overrides=where)
            sweeps._sweep_with_runs(self._api, self.sweep_id, "{}")  # pyright: ignore[reportPrivateUsage]
            registered = sweeps._register_agent(  # pyright: ignore[reportPrivateUsage]
                self._api, socket.gethostname(), sweep_id=self.sweep_id
            )
        except Exception as error:  # the SDK lets out its own errors, pydantic's and the socket's
            told = f"{path} cannot be joined ({first_line(error)}); `wandb sweep FILE` makes one and tells its name"
            raise ConfigError("SWEEP", told) from error
        self._id: str = registered["id"]

    def ask(self, running: Collection[str]) -> list[Command]:
        """Tell W&B which runs go on; what it wants now: nothing if it does not answer, an end if the sweep is gone."""
        from wandb.apis.public import sweeps
        from wandb.sdk.sweeps import SweepNotFoundError

        states = dict.fromkeys(running, True)
        try:
            told = sweeps._agent_heartbeat(self._api, self._id, {}, states)  # pyright: ignore[reportPrivateUsage]
        except SweepNotFoundError:
            return [Command("exit")]
        return [
            Command(
                command["type"],
                command.get("run_id", ""),
                {key: own["value"] for key, own in (command.get("args") or {}).items()},
            )
            for command in told
        ]
