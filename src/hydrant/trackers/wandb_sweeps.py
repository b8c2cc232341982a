"""W&B's protocol for sweep agents: join a sweep, report runs, receive commands."""

from __future__ import annotations

import logging
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hydrant.errors import ConfigError, first_line
from hydrant.trackers.wandb_sdk import access_problem


@dataclass(frozen=True)
class Command:
    """A command of W&B to an agent. `kind` is `run`, `resume`, `stop` or `exit`; `exit` has no run."""

    kind: str
    run_id: str = ""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])  # by parameter of the sweep


class SweepAgent:
    """An agent of the sweep `entity/project/sweep`.

    Raises:
        ConfigError: W&B cannot be used online, or this account cannot join such a sweep.
    """

    def __init__(self, path: str) -> None:
        entity, project, self.sweep_id = path.split("/")
        self.environment = {"WANDB_ENTITY": entity, "WANDB_PROJECT": project, "WANDB_SWEEP_ID": self.sweep_id}
        problem = access_problem()
        if problem is not None:
            raise ConfigError(
                "SWEEP", problem, remedy="log in with `wandb login`, because W&B hands out the runs"
            )
        import wandb
        from wandb.apis.public import sweeps

        # Its logger prints a traceback for each query that fails; the agent repeats the query anyway.
        logging.getLogger(sweeps.__name__).addHandler(logging.NullHandler())
        try:
            self._api = wandb.Api(overrides={"entity": entity, "project": project})
            sweeps._sweep_with_runs(self._api, self.sweep_id, "{}")  # pyright: ignore[reportPrivateUsage]
            registered = sweeps._register_agent(  # pyright: ignore[reportPrivateUsage]
                self._api, socket.gethostname(), sweep_id=self.sweep_id
            )
        except Exception as error:  # the SDK raises its own errors, pydantic's and the socket's
            remedy = "`wandb sweep FILE` makes a sweep and prints its path"
            raise ConfigError(
                "SWEEP", f"{path} cannot be joined ({first_line(error)})", remedy=remedy
            ) from error
        self._id: str = registered["id"]

    def heartbeat(self, running: Collection[str]) -> list[Command]:
        """Report the ids of the running runs and return W&B's commands.

        Returns:
            No commands if W&B does not answer, or its answer cannot be read. The command `exit` if the sweep does not
            exist any more.
        """
        from wandb.apis.public import sweeps
        from wandb.sdk.sweeps import SweepNotFoundError

        states = dict.fromkeys(running, True)
        try:
            answer: Any = sweeps._agent_heartbeat(self._api, self._id, {}, states)  # pyright: ignore[reportPrivateUsage]
            return [_command(fields) for fields in answer]
        except SweepNotFoundError:
            return [Command("exit")]
        except (KeyError, TypeError, ValueError, AttributeError):  # not the answer of W&B's server
            return []


def _command(fields: Mapping[str, Any]) -> Command:
    arguments = (fields.get("args") or {}).items()
    values = {str(key): entry["value"] for key, entry in arguments}
    return Command(fields["type"], str(fields.get("run_id", "")), values)
