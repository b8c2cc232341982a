"""The MLflow tracker: a run of an MLflow store, which is a local SQLite file unless a server is given."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from hydrant.errors import log, shown
from hydrant.files.on_disk import as_csv, locked
from hydrant.installation import require_extra
from hydrant.trackers import NoAnswerError, NullTracker, RunIdentity, call_with_timeout, keep_id, read_id

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric


ID_FILE = Path("mlflow", "run-id")
"""The file in a run folder with the id of its MLflow run."""
LOCAL_STORE = "mlflow.db"
"""The SQLite file, in the working folder, of runs that name no other store."""
_VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Variables that are set before MLflow is imported, unless the user has set them. By default, MLflow repeats requests
to a lost server for minutes."""
_START_SECONDS = 300.0
"""How long a run waits for its store: for the server, or for other runs that open the same new file."""
_PARAMS_IN_A_CALL, _METRICS_IN_A_CALL = 100, 1000  # MLflow's limits
_MAX_VALUE = 6000  # characters of a parameter
_LAST_KEY = "epoch"
"""The metric that every row has. It is sent last, so a row that has it in the store is complete there."""


class MlflowTracker(NullTracker):
    """One MLflow run for one run folder. A resumed run continues it under the same id.

    A separate thread sends rows, pictures, texts and tables, so that the store does not delay training. It sends all
    waiting rows at once. A resumed run sends the rows that its killed process has not sent. MLflow cannot remove rows:
    those that were sent already are left out, because the run computes them again with the same values. A run that
    starts again at update 0 gets another MLflow run, and the old one is deleted.

    Args:
        experiment: the name of MLflow's experiment, which is created if it does not exist.
        tracking_uri: the store; None: MLFLOW_TRACKING_URI, else mlflow.db. The latter is an SQLite file in the working
            folder.

    Raises:
        ConfigError: MLflow is not installed.
        Exception: MLflow cannot open the store. A later call raises the error of an earlier one that could not be
            written.
    """

    def __init__(
        self, identity: RunIdentity, num_updates: int, *, experiment: str, tracking_uri: str | None
    ) -> None:
        require_extra("mlflow", ["mlflow"], "tracker", "tracker=mlflow")
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every table that it creates
        self._num_updates, self._last_logged = num_updates, -1
        uri = (
            tracking_uri
            or os.environ.get("MLFLOW_TRACKING_URI")
            or f"sqlite:///{Path(LOCAL_STORE).resolve()}"
        )
        self._client: MlflowClient
        self._run_id: str

        def start() -> None:
            with _one_process_opens(uri):
                self._client = MlflowClient(tracking_uri=uri)
                self._run_id = self._start(identity, num_updates, experiment)
            _log_config(self._client, self._run_id, identity.config)

        if (error := call_with_timeout(start, _START_SECONDS)) is not None:
            raise error
        self._sender = Sender()
        self._metrics: deque[Metric] = deque()  # that wait for the sender
        for row in identity.history():
            self.log(row)
        log.info("MLflow: run %s in %s", self._run_id, uri)

    def log(self, row: Mapping[str, float]) -> None:
        """Log a row: `num_updates` is its step."""
        from mlflow.entities import Metric

        self._num_updates = int(row["num_updates"])
        if self._num_updates <= self._last_logged:
            return
        milliseconds = int(row["time"] * 1000)
        keys = [key for key in row if key not in ("num_updates", "time", _LAST_KEY)]
        self._metrics += [
            Metric(_allowed(key), row[key], milliseconds, self._num_updates) for key in [*keys, _LAST_KEY]
        ]
        self._sender.send(self._send_metrics)

    def image(self, key: str, path: Path) -> None:
        """Keep a picture as an artifact."""
        self._sender.send(self._client.log_artifact, self._run_id, str(path), f"pictures/{key}")

    def text(self, key: str, text: str) -> None:
        """Keep a text as an artifact."""
        self._sender.send(self._client.log_text, self._run_id, text, self._artifact("texts", key, "txt"))

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Keep a table as a CSV artifact, which MLflow shows as a table."""
        file = self._artifact("tables", key, "csv")
        self._sender.send(self._client.log_text, self._run_id, as_csv([columns, *rows]), file)

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """Keep the best values and summary.json, and end the run. Waits until everything is written."""
        best = summary.get("best")
        if best is not None:
            for key, value in ((best["metric"], best["value"]), ("num_updates", best["num_updates"])):
                self._sender.send(self._client.log_metric, self._run_id, _allowed(f"best/{key}"), value)
        self._sender.send(self._client.log_dict, self._run_id, dict(summary), "summary.json")
        status = "FINISHED" if exit_status == 0 else "KILLED" if exit_status >= 128 else "FAILED"
        self._sender.send(self._client.set_terminated, self._run_id, status)
        self._sender.finish()

    def _start(self, identity: RunIdentity, num_updates: int, experiment: str) -> str:
        """Return the id of the run, which is created, or runs again."""
        saved = (read_id(identity.folder, ID_FILE) or b"").decode()
        if saved and num_updates:
            self._client.update_run(saved, status="RUNNING")
            history = self._client.get_metric_history(saved, _LAST_KEY)
            self._last_logged = max((metric.step for metric in history), default=-1)
            keep_id(identity.folder, ID_FILE, saved)
            return saved
        if saved:
            self._client.delete_run(saved)
        existing = self._client.get_experiment_by_name(experiment)
        experiment_id = existing.experiment_id if existing else self._client.create_experiment(experiment)
        tags = {"group": identity.group, "job_type": identity.job_type, "mlflow.note.content": identity.notes}
        tags |= {_allowed(tag): "true" for tag in identity.tags}
        run_id = self._client.create_run(experiment_id, tags=tags, run_name=identity.name).info.run_id
        keep_id(identity.folder, ID_FILE, run_id)
        return run_id

    def _send_metrics(self) -> None:
        """Send all metrics that wait, in few calls. The thread of the sender calls this."""
        while self._metrics:
            number = min(len(self._metrics), _METRICS_IN_A_CALL)
            self._client.log_batch(self._run_id, [self._metrics.popleft() for _ in range(number)])

    def _artifact(self, kind: str, key: str, suffix: str) -> str:
        return f"{kind}/{key}/update_{self._num_updates:08d}.{suffix}"


_SILENT_SECONDS = 120.0
"""How long the end of a run waits for one call, which has shorter time limits of its own."""


class Sender:
    """Makes calls one after the other in a thread of its own. After one that raises, it makes no other.

    Python does not wait for this thread when it exits, because a call to a lost server may take long.
    """

    def __init__(self) -> None:
        self._calls = SimpleQueue[Callable[[], object] | None]()
        self._error: Exception | None = None
        self._num_made = 0
        self._thread = threading.Thread(target=self._make_calls, name="hydrant-sender", daemon=True)
        self._thread.start()

    def send(self, call: Callable[..., object], *arguments: object) -> None:
        """Let the thread make a call. Raises what an earlier call has raised."""
        if self._error is not None:
            self.finish()
        self._calls.put(partial(call, *arguments))

    def finish(self) -> None:
        """Wait for all calls, and end the thread. Raises what a call has raised, or NoAnswerError if one hangs."""
        self._calls.put(None)
        while self._thread.is_alive():
            num_made = self._num_made
            self._thread.join(_SILENT_SECONDS)
            if self._thread.is_alive() and self._num_made == num_made:
                raise NoAnswerError(f"no answer within {_SILENT_SECONDS:g} s")
        if self._error is not None:
            raise self._error

    def _make_calls(self) -> None:
        for call in iter(self._calls.get, None):
            try:
                if self._error is None:
                    call()
            except Exception as error:
                self._error = error
            self._num_made += 1


@contextlib.contextmanager
def _one_process_opens(uri: str) -> Generator[None]:
    """Let one process at a time open an SQLite store: each creates the tables that are missing, without a lock."""
    path = uri.removeprefix("sqlite:///")
    if path == uri:
        yield
        return
    with locked(Path(f"{path}.lock")):
        yield


def _log_config(client: MlflowClient, run_id: str, config: Mapping[str, Any]) -> None:
    """Log the config as parameters. Those that an earlier start has logged stay, because MLflow cannot change one."""
    from mlflow.entities import Param

    texts = {_allowed(key): one if isinstance(one, str) else shown(one) for key, one in config.items()}
    known = client.get_run(run_id).data.params
    params = [Param(name, text[:_MAX_VALUE]) for name, text in texts.items() if name not in known]
    for first in range(0, len(params), _PARAMS_IN_A_CALL):
        client.log_batch(run_id, params=params[first : first + _PARAMS_IN_A_CALL])


def _allowed(name: str) -> str:
    """Return a name with only the characters that MLflow accepts."""
    return re.sub(r"[^\w\-. :/]", "_", name)
