"""The tracker Trackio, whose data stay on this machine."""

import contextlib
import io
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.errors import log
from hydrant.installation import require_extra
from hydrant.trackers import Histogram, NullTracker, RunIdentity, keep_id, read_id

ID_FILE = Path("trackio", "run-id")
"""The file in a run folder with the id of its Trackio run."""


class TrackioTracker(NullTracker):
    """One Trackio run for one run folder. A resumed run continues it under the same id.

    Trackio writes into TRACKIO_DIR, by default a folder of Hugging Face's cache, in a thread of its own. A resumed run
    writes the rows that its killed process has not written. Trackio cannot remove rows: those that it has are left out,
    because the run computes them again with the same values. A run that starts again at update 0 gets another Trackio
    run.

    Args:
        project: the name of Trackio's project.

    Raises:
        ConfigError: Trackio is not installed.
        Exception: Trackio cannot write.
    """

    def __init__(self, identity: RunIdentity, num_updates: int, *, project: str) -> None:
        require_extra("trackio", ["trackio"], "tracker", "tracker=trackio")
        from trackio.sqlite_storage import SQLiteStorage

        SQLiteStorage.init_db(project)  # without it, rows that cannot be written are lost without a word
        saved = (read_id(identity.folder, ID_FILE) or b"").decode() if num_updates else ""
        run_id = saved or secrets.token_hex(16)
        keep_id(identity.folder, ID_FILE, run_id)
        last = SQLiteStorage.get_max_step_for_run(project, identity.name, run_id=run_id) if saved else None
        self._last_logged = -1 if last is None else last
        self._num_updates = num_updates
        self._run: Any = _local_run(
            url=None,
            project=project,
            client=None,
            name=identity.name,
            run_id=run_id,
            group=identity.group,
            config={**identity.config, "tags": list(identity.tags), "notes": identity.notes},
        )
        for row in identity.history():
            self.log(row)
        log.info("Trackio: run %s of project %s; trackio show --project %s", identity.name, project, project)

    def log(self, row: Mapping[str, float]) -> None:
        """Log a row: `num_updates` is its step."""
        self._num_updates = int(row["num_updates"])
        self._log({key: value for key, value in row.items() if key not in ("num_updates", "time")})

    def image(self, key: str, path: Path) -> None:
        """Log a picture at the last logged update."""
        from trackio import Image

        self._log({key: Image(str(path))})

    def text(self, key: str, text: str) -> None:
        """Log a text at the last logged update."""
        from trackio import Markdown

        self._log({key: Markdown("".join(f"    {line}\n" for line in text.splitlines()))})

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table at the last logged update."""
        from trackio import Table

        self._log({key: Table(columns=list(columns), data=[list(row) for row in rows])})

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        """Log histograms of weights and gradients."""
        from trackio import Histogram as TrackioHistogram

        self._num_updates = num_updates
        self._log({key: TrackioHistogram(np_histogram=(h.counts, h.edges)) for key, h in histograms.items()})

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """Log the best values, and wait until everything is written."""
        best = summary.get("best")
        if best is not None:
            self._last_logged = -1
            self._log({f"best/{best['metric']}": best["value"], "best/num_updates": best["num_updates"]})
        with contextlib.redirect_stdout(io.StringIO()):  # it prints that it waits
            self._run.finish()

    def _log(self, values: Mapping[str, Any]) -> None:
        if self._num_updates > self._last_logged:
            self._run.log(dict(values), step=self._num_updates)


def _local_run(**arguments: Any) -> Any:
    """Return a run of Trackio. Not by `trackio.init`: it identifies runs by their names, and may start a server."""
    from trackio.run import Run

    class LocalRun(Run):
        def _get_username(self) -> None:
            """Do not ask the Hub, as Trackio 0.43 does if there is a token: without an answer, it waits for ever."""

    return LocalRun(**arguments)
