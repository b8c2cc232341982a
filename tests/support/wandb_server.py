"""A loopback server that stands in for the cloud service of Weights & Biases, so that tests use the real SDK.

It answers the queries of wandb-core 0.31 for an ordinary run: the account, the run's record and resume status, the
stream of history rows, file uploads, artifacts with one manifest and one request per file, the end. `runs` holds what
it received, and its public API can query them. It hands out the runs of sweeps over a grid. It does not model the rest
of the service: merging, charts, versions and aliases, uploads in several parts, history as parquet files.

>>> with WandbServer() as server:
...     server.url.startswith("http://127.0.0.1:")
True
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from wandb_queries import queries
from wandb_received import ENTITY, ReceivedArtifact, ReceivedRun, encode, project_node
from wandb_sweeps import Sweeps

STATUSES = ("401", "403", "404", "429", "500")
NOISE = {
    "bytes": bytes(range(256)) * 40,
    "a cut answer": b'{"data": {"viewer": {"id": "a"',
    "other types": b'{"data": {"viewer": 7, "serverInfo": [], "model": "x", "upsertBucket": [], "project": 1}}',
    "deep nesting": b"[" * 100_000,
    "much": b'{"data": "' + b"x" * 10_000_000,
    "an error that clears the screen": b'{"errors": [{"message": "\\u001b[2J"}]}',
}
"""What a server answers that is not W&B, with status 200."""

CHAOS = ("ok", *STATUSES, *NOISE, "hang", "reset")
ENDPOINTS = ("graphql", "file_stream", "upload")
FILE_STREAM = re.compile(r"/files/[^/]+/(?P<project>[^/]+)/(?P<run_id>[^/]+)/file_stream")
STREAMED_LISTS = {"wandb-history.jsonl": "history", "wandb-events.jsonl": "events"}
UPSERTED = {
    "displayName": "name",
    "groupName": "group",
    "jobType": "job_type",
    "notes": "notes",
    "tags": "tags",
    "host": "host",
    "sweep": "sweep",
}


class WandbServer:
    """A server on a free port of 127.0.0.1, in a thread. Use it as a context manager.

    `url` is the value for WANDB_BASE_URL. `runs` holds everything received, by (project, run id). `operations` holds
    the names of the requests in order.
    """

    def __init__(self, port: int = 0) -> None:
        self.runs: dict[tuple[str, str], ReceivedRun] = {}
        self.sweeps = Sweeps(self.runs)
        self.views: list[dict[str, Any]] = []
        self.operations: list[str] = []
        self.lock = threading.RLock()
        self._chaos = dict.fromkeys(ENDPOINTS, "ok")
        self._calm = threading.Event()
        self._http = _HttpServer(("127.0.0.1", port), _Handler)
        self._http.stand_in = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def chaos(self, mode: str, *endpoints: str) -> None:
        """Answer with `mode`: a status, one of `NOISE`, `hang`, `reset` or `ok`; at all endpoints by default."""
        assert mode in CHAOS, f"{mode!r} is not one of {CHAOS}"
        self._calm.set()  # requests that hang are reset
        self._calm = threading.Event()
        self._chaos.update(dict.fromkeys(endpoints or ENDPOINTS, mode))

    def only_run(self) -> ReceivedRun:
        """Return the only run received."""
        (run,) = self.runs.values()
        return run

    def __enter__(self) -> WandbServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._calm.set()
        self._http.shutdown()
        self._http.server_close()

    def disturb(self, endpoint: str) -> str:
        """Return the chaos mode of an endpoint; wait for the end of `hang` first."""
        mode = self._chaos[endpoint]
        if mode == "hang":
            self._calm.wait()
            return "reset"
        return mode

    def run(self, project: str, run_id: str) -> ReceivedRun:
        return self.runs.setdefault((project, run_id), ReceivedRun(project, run_id))

    def answer(self, operation: str, query: str, variables: dict[str, Any]) -> dict[str, Any] | None:
        """Return the `data` of a GraphQL response, or None for an operation that is not modelled."""
        self.operations.append(operation)
        if operation == "Viewer" or "viewer" in query:
            return {"viewer": _VIEWER, "serverInfo": {"cliVersionInfo": {"max_cli_version": "9.9.9"}}}
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ServerFeaturesQuery": lambda _: {"serverInfo": {"features": []}},
            "OrganizationCoreWeaveOrganizationID": lambda _: {"entity": {"organization": None}},
            "RunStoppedStatus": lambda _: {"project": {"run": {"stopped": False}}},
            "UpsertBucket": self._upsert,
            "RunResumeStatus": self._resume_status,
            "CreateRunFiles": self._create_files,
            **queries(self.runs),
            "UpsertView2": self._upsert_view,
            "upsertView": self._upsert_view,
            **self.sweeps.answers(),
            "ClientIDMapping": lambda _: {"clientIDMapping": None},
            "XXHashDigestsEnabled": lambda _: {"entity": {"xxhashDigestsEnabled": False}},
            "ArtifactType": lambda _: {"project": {"artifact": None}},
            "CreateArtifact": self._create_artifact,
            "CreateArtifactManifest": self._create_manifest,
            "UpdateArtifactManifest": self._update_manifest,
            "CreateArtifactFiles": self._create_artifact_files,
            "CommitArtifact": self._commit,
        }
        return answers[operation](variables) if operation in answers else None

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        project, run_id = variables.get("project"), variables.get("name")
        if run_id is None:  # an update names the run by the id of its node
            _, project, run_id = base64.b64decode(variables["id"]).decode().split(":")
        inserted = (project, run_id) not in self.runs
        run = self.run(project, run_id)
        for source, target in UPSERTED.items():
            if variables.get(source) is not None:
                setattr(run, target, variables[source])
        run.raw_config = variables.get("config") or run.raw_config
        run.summary.update(json.loads(variables.get("summaryMetrics") or "{}"))
        run.state = variables.get("state") or "running"
        return {"upsertBucket": {"bucket": run.bucket, "inserted": inserted}}

    def _resume_status(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get((variables["project"], variables["name"]))
        return {"model": {**project_node(variables["project"]), "bucket": run.bucket if run else None}}

    def _create_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        project, run_id = variables["project"], variables["run"]
        uploads = [
            {"name": name, "uploadUrl": f"{self.url}/upload/{project}/{run_id}/{name}"}
            for name in variables["files"]
        ]
        return {
            "createRunFiles": {"runID": encode("Run", project, run_id), "uploadHeaders": [], "files": uploads}
        }

    def _upsert_view(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.views.append(variables | {"spec": json.loads(variables["spec"])})
        view_id = encode("View", str(len(self.views)))
        shown = {key: variables[key] for key in ("name", "displayName", "type", "description", "spec")}
        project = {"name": variables["projectName"], "entityName": variables["entityName"]}
        view = {"id": view_id, **shown, "project": project, "createdAt": None, "updatedAt": None}
        return {"upsertView": {"view": view, "inserted": True}}

    def artifact(self, artifact_id: str) -> ReceivedArtifact:
        return next(a for run in self.runs.values() for a in run.artifacts if a.artifact_id == artifact_id)

    def _create_artifact(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Create a version, or return the existing one with the same content."""
        request = variables["input"]
        run = self.run(request["projectName"], request["runName"])
        name = (request.get("artifactCollectionNames") or [request.get("artifactCollectionName")])[0]
        versions = [a for a in run.artifacts if (a.name, a.digest) == (name, request["digest"])]
        if not versions:
            artifact_id = encode("Artifact", run.project, run.run_id, str(len(run.artifacts)))
            aliases = [alias["alias"] for alias in request.get("aliases") or []]
            metadata = json.loads(request.get("metadata") or "{}")
            kind, digest = request["artifactTypeName"], request["digest"]
            versions = [ReceivedArtifact(artifact_id, name, kind, digest, aliases, metadata)]
            run.artifacts += versions
        state = "COMMITTED" if versions[0].is_committed else "PENDING"
        node = {"id": versions[0].artifact_id, "state": state}
        sequence = {"id": encode("Sequence", name), "latestArtifact": None}
        return {"createArtifact": {"artifact": {**node, "artifactSequence": sequence}}}

    def _create_manifest(self, variables: dict[str, Any]) -> dict[str, Any]:
        artifact_id = variables["artifactID"]
        return {"createArtifactManifest": {"artifactManifest": self._manifest(artifact_id)}}

    def _update_manifest(self, variables: dict[str, Any]) -> dict[str, Any]:
        artifact_id = variables["artifactManifestID"]
        return {"updateArtifactManifest": {"artifactManifest": self._manifest(artifact_id)}}

    def _manifest(self, artifact_id: str) -> dict[str, Any]:
        url = f"{self.url}/upload/manifest/{artifact_id}/wandb_manifest.json"
        return {"id": artifact_id, "file": {"id": artifact_id, "uploadUrl": url, "uploadHeaders": []}}

    def _create_artifact_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        nodes: list[dict[str, Any]] = []
        for file in variables["input"]["artifactFiles"]:
            url = f"{self.url}/upload/artifact/{file['artifactID']}/{file['name']}"
            node = {"storagePath": file["name"], "uploadUrl": url, "uploadHeaders": []}
            nodes.append({**node, "uploadMultipartUrls": None, "artifact": {"id": file["artifactID"]}})
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def _commit(self, variables: dict[str, Any]) -> dict[str, Any]:
        artifact = self.artifact(variables["artifactID"])
        artifact.is_committed = True
        return {"commitArtifact": {"artifact": {"id": artifact.artifact_id, "digest": artifact.digest}}}

    def upload(self, owner: str, owner_id: str, name: str, body: bytes) -> None:
        """Store a file of a run or of an artifact. `owner` is the run's project, `manifest` or `artifact`."""
        if owner == "manifest":
            self.artifact(owner_id).manifest = json.loads(body)
        elif owner == "artifact":
            self.artifact(owner_id).files[name] = body
        else:
            self.run(owner, owner_id).files[name] = body

    def stream(self, project: str, run_id: str, body: dict[str, Any]) -> None:
        """Store rows. Their offset is a line number of the file, so a chunk sent twice is stored once."""
        self.operations.append("file_stream")
        run = self.run(project, run_id)
        for file_name, chunk in (body.get("files") or {}).items():
            lines = chunk.get("content", [])
            if file_name == "wandb-summary.json":
                run.summary = json.loads(lines[-1])
            elif file_name in STREAMED_LISTS:
                rows: list[dict[str, Any]] = getattr(run, STREAMED_LISTS[file_name])
                rows[chunk.get("offset", 0) :] = [json.loads(line) for line in lines]
        run.is_preempting |= bool(body.get("preempting"))
        if body.get("complete"):
            run.exit_code = body.get("exitcode", 0)
            unfinished = "preempted" if run.is_preempting else "failed"
            run.state = "finished" if run.exit_code == 0 else unfinished


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    stand_in: WandbServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # tests disconnect clients on purpose
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: `operations` holds the requests."""

    def do_POST(self) -> None:
        body, stand_in = self._body(), self.server.stand_in
        if self.path.startswith("/graphql"):
            if self._disturbed("graphql"):
                return
            request = json.loads(body)
            query = request["query"]
            match = re.search(r"(?:query|mutation)\s+(\w+)", query)
            operation = request.get("operationName") or (match[1] if match else "")
            with stand_in.lock:
                data = stand_in.answer(operation, query, request.get("variables") or {})
            self._send(
                {"data": data} if data is not None else {"errors": [{"message": f"unknown {operation}"}]}
            )
        elif match := FILE_STREAM.match(self.path):
            if not self._disturbed("file_stream"):
                with stand_in.lock:
                    stand_in.stream(match["project"], match["run_id"], json.loads(body))
                self._send({"exitcode": None, "limits": {}})
        elif self.path.startswith("/chaos/"):
            mode, endpoint = self.path.split("/")[2:]
            stand_in.chaos(unquote(mode), endpoint)
            self._send({})
        else:
            stand_in.operations.append(f"POST {self.path}")
            self._send({}, 404)

    def do_PUT(self) -> None:
        body = self._body()
        if self._disturbed("upload"):
            return
        _, _, owner, owner_id, name = self.path.split("?")[0].split("/", 4)
        with self.server.stand_in.lock:
            self.server.stand_in.upload(owner, owner_id, name, body)
        self._send({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _send(self, content: dict[str, Any], status: int = 200) -> None:
        self._send_bytes(json.dumps(content).encode(), status)

    def _send_bytes(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _disturbed(self, endpoint: str) -> bool:
        """Return whether a chaos mode has answered the request."""
        mode = self.server.stand_in.disturb(endpoint)
        if mode == "ok":
            return False
        if mode in STATUSES:
            self._send({"error": "chaos"}, int(mode))
            return True
        if mode in NOISE:
            self._send_bytes(NOISE[mode])
            return True
        linger_zero = struct.pack("ii", 1, 0)  # makes close() send RST instead of FIN
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
        self.connection.close()
        self.close_connection = True
        return True


_VIEWER = {
    "id": encode("User", ENTITY),
    "entity": ENTITY,
    "username": ENTITY,
    "name": ENTITY,
    "email": "tester@localhost",
    "admin": False,
    "flags": "{}",
    "teams": {"edges": []},
    "defaultEntity": {"name": ENTITY},
}
