"""W&B sweeps on the stand-in server, which gives each agent the next point of the grid."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from wandb_received import ReceivedRun, encode, project_node

Variables = dict[str, Any]


@dataclass
class ReceivedSweep:
    """A sweep, and the remaining points of its grid."""

    sweep_id: str
    project: str
    config: dict[str, Any]
    points: list[dict[str, Any]]
    handed_out: dict[str, dict[str, Any]] = field(default_factory=dict)


class Sweeps:
    """All sweeps by id. The id of an agent is that of its sweep."""

    def __init__(self, runs: dict[tuple[str, str], ReceivedRun]) -> None:
        self.runs = runs
        self.by_id: dict[str, ReceivedSweep] = {}

    def only_sweep(self) -> ReceivedSweep:
        (sweep,) = self.by_id.values()
        return sweep

    def answers(self) -> dict[str, Callable[[Variables], dict[str, Any]]]:
        return {
            "UpsertSweep": self._upsert,
            "SweepWithRuns": self._show,
            "CreateAgent": self._register,
            "Heartbeat": self._heartbeat,
        }

    def _upsert(self, variables: Variables) -> dict[str, Any]:
        config = yaml.safe_load(variables["config"])
        keys = config["parameters"]
        values = [key.get("values", [key.get("value", key.get("min"))]) for key in keys.values()]
        points = [dict(zip(keys, point, strict=True)) for point in itertools.product(*values)]
        sweep = ReceivedSweep(
            f"sweep{len(self.by_id)}", variables["projectName"] or "uncategorized", config, points
        )
        self.by_id[sweep.sweep_id] = sweep
        node = {"name": sweep.sweep_id, "project": project_node(sweep.project)}
        return {"upsertSweep": {"sweep": node, "configValidationWarnings": []}}

    def _show(self, variables: Variables) -> dict[str, Any]:
        sweep = self.by_id.get(variables["sweep"])
        if sweep is None or sweep.project != variables["project"]:
            return {"project": {"sweep": None}}
        node = {"id": encode("Sweep", sweep.sweep_id), "name": sweep.sweep_id, "state": "RUNNING"}
        return {"project": {"sweep": node | {"config": yaml.safe_dump(sweep.config), "runs": {"edges": []}}}}

    def _register(self, variables: Variables) -> dict[str, Any]:
        return {"createAgent": {"agent": {"id": encode("Agent", variables["sweep"])}}}

    def _heartbeat(self, variables: Variables) -> dict[str, Any]:
        (sweep,) = [s for s in self.by_id.values() if encode("Agent", s.sweep_id) == variables["id"]]
        commands = [] if json.loads(variables["runState"]) else [self._next(sweep)]
        return {"agentHeartbeat": {"agent": {"id": variables["id"]}, "commands": json.dumps(commands)}}

    def _next(self, sweep: ReceivedSweep) -> dict[str, Any]:
        if not sweep.points:
            return {"type": "exit"}
        run_id = f"{sweep.sweep_id}-run{len(sweep.handed_out)}"
        sweep.handed_out[run_id] = arguments = sweep.points.pop(0)
        values = {key: {"value": value} for key, value in arguments.items()}
        return {"type": "run", "run_id": run_id, "program": sweep.config["program"], "args": values}
