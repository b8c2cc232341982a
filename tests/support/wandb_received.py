"""The data that the stand-in for W&B stores about a run, and W&B's form of it."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

ENTITY = "tester"


@dataclass
class ReceivedArtifact:
    """A version of an artifact. `files` holds the uploaded files."""

    artifact_id: str
    name: str
    kind: str
    digest: str
    aliases: list[str]
    metadata: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    is_committed: bool = False


@dataclass
class ReceivedRun:
    """A run as the client described it. `config` holds plain values, `history` one dict per row."""

    project: str
    run_id: str
    name: str | None = None
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    host: str | None = None
    sweep: str | None = None
    tags: list[str] = field(default_factory=list)
    raw_config: str = "{}"
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    artifacts: list[ReceivedArtifact] = field(default_factory=list)
    state: str = "running"
    exit_code: int | None = None
    is_preempting: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The config without W&B's own entries, with each `{"value": …}` unwrapped."""
        entries: dict[str, Any] = json.loads(self.raw_config)
        return {key: entry["value"] for key, entry in entries.items() if not key.startswith("_")}

    @property
    def bucket(self) -> dict[str, Any]:
        """The run in W&B's form, with the line counts from which a client resumes."""
        tails = {
            "historyTail": json.dumps([json.dumps(row) for row in self.history[-1:]]),
            "eventsTail": json.dumps([json.dumps(row) for row in self.events[-1:]]),
        }
        return {
            "id": encode("Run", self.project, self.run_id),
            "name": self.run_id,
            "displayName": self.name,
            "description": None,
            "config": self.raw_config,
            "summaryMetrics": json.dumps(self.summary),
            "sweepName": self.sweep,
            "historyLineCount": len(self.history),
            "eventsLineCount": len(self.events),
            "logLineCount": 0,
            "tags": self.tags,
            "notes": self.notes,
            "wandbConfig": json.dumps({"t": 1}),
            "project": project_node(self.project),
            **tails,
        }


def encode(*parts: str) -> str:
    return base64.b64encode(":".join(parts).encode()).decode()


def project_node(name: str) -> dict[str, Any]:
    return {
        "id": encode("Project", name),
        "name": name,
        "entity": {"id": encode("Entity", ENTITY), "name": ENTITY},
    }
