"""Weights & Biases, as a sink that may fail: whatever network, key or server do, the run goes on.

Online if a key is configured and the server answers a probe of our own; else offline, with one warning that
names the command that sends it. The record is metrics.jsonl; what is here is for looking at.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydrant.errors import first_line, unknown_name
from hydrant.redaction import redacted
from hydrant.trackers.base import Histogram, RunIdentity
from hydrant.trackers.wandb_access import bounded, obstacle, own_service, teardown
from hydrant.trackers.wandb_media import log_artifact, log_histograms, log_image, log_table, save_file
from hydrant.trackers.wandb_names import project_name, resolve_mode, run_id, shown_name, tag_names

if TYPE_CHECKING:
    import wandb

log = logging.getLogger("hydrant")

PRELOAD = ("wandb", "wandb.sdk.launch.inputs.internal")  # each start of a run imports that

TOLD = (
    "status", "num_updates", "total_updates", "num_parameters",
    "environment", "compile", "perf", "error", "trial", "pruned",
)  # fmt: skip
"""What W&B's summary has of ours under `hydrant`, for `hydrant compare` to read."""

STOPPED = "wandb/hydrant-stopped"
"""The file in a run folder that says that its W&B sweep has stopped the run: it is not to go on."""

CHECKPOINTS = ("none", "best", "last", "all")
GRACE_SECONDS = 5.0  # what the SDK gets beyond its own time limit before it is left to itself


class WandbTracker:
    """One W&B run for one run folder, the same again after a resume.

    `mode` is `auto` (online where possible; the environment's WANDB_MODE decides if set), `online`,
    `offline` or `disabled`. `group`, `job_type`, `name` and `tags` default to the run's identity.
    `probe_timeout`, `init_timeout`, `finish_timeout` bound, in seconds, the question whether W&B answers,
    the start, the last upload. `log_checkpoints` makes artifacts of the best or the last checkpoint when the run ends,
    or of each, `log_config` one of config.yaml. `save_code` lets W&B take the source, `machine_info` argv, host, git
    and load.

    Raises ConfigError for a mode that does not exist and for names that W&B refuses.
    """

    def __init__(
        self,
        identity: RunIdentity,
        num_updates: int,
        *,
        project: str,
        entity: str | None,
        mode: Literal["auto", "online", "offline", "disabled"],
        group: str | None,
        job_type: str | None,
        name: str | None,
        tags: Sequence[str] | None,
        notes: str | None,
        probe_timeout: float,
        init_timeout: float,
        finish_timeout: float,
        log_checkpoints: Literal["none", "best", "last", "all"],
        log_config: bool,
        save_code: bool,
        machine_info: bool,
    ) -> None:
        self._folder = identity.folder.resolve()
        self._num_updates = num_updates
        self._finish_timeout = finish_timeout
        self._run: wandb.Run | None = None
        self._id: str | None = None
        self._mode = resolve_mode(mode)
        if log_checkpoints not in CHECKPOINTS:
            raise unknown_name("tracker.log_checkpoints", "choice", str(log_checkpoints), CHECKPOINTS)
        self._log_checkpoints, self._log_config = log_checkpoints, log_config
        self._best = identity.best
        self._path: str | None = None
        self._sync_command = ""
        arguments: dict[str, Any] = {
            "project": project_name(project),
            "entity": entity,
            "group": shown_name("group", group, identity.group),
            "job_type": shown_name("job_type", job_type, identity.job_type),
            "name": shown_name("name", name, identity.name),
            "tags": tag_names(tags, identity.tags),
            "notes": identity.notes if notes is None else notes,
            "config": dict(identity.config),
            "save_code": save_code,
        }
        self._settings: dict[str, Any] = {
            "init_timeout": init_timeout,
            "finish_timeout": finish_timeout,
            "x_disable_machine_info": not machine_info,
            "x_save_requirements": machine_info,
            "host": None if machine_info else "",  # an offline run would name it all the same
        }
        if self._mode != "disabled":
            self._start(redacted(arguments), probe_timeout)

    def log(self, row: Mapping[str, float]) -> None:
        """One row of history, over `num_updates`. The first failure ends the logging, never the run."""
        self._num_updates = int(row["num_updates"])
        self._send(lambda run: run.log(dict(row)))

    def image(self, key: str, path: Path) -> None:
        """A picture, shown at the last logged update."""
        self._send(lambda run: log_image(run, self._num_updates, key, path))

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table, at the last logged update."""
        self._send(lambda run: log_table(run, self._folder, self._num_updates, key, columns, rows))

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        """A row of histograms, over `num_updates`."""
        self._send(lambda run: log_histograms(run, num_updates, histograms))

    def file(self, path: Path) -> None:
        """A file of the run folder, under its path there."""
        self._send(lambda run: save_file(run, self._folder, path))

    def checkpoint(self, path: Path) -> None:
        """A version of the run's artifact, if all checkpoints are to be such."""
        if self._log_checkpoints == "all":
            self._log_checkpoint(path, [])

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """Write the best values, end the run, in `finish_timeout` and a few seconds. Raises nothing."""
        if self._run is None:
            return
        self._log_artifacts()
        run, self._run = self._run, None

        def end() -> None:
            if best := summary.get("best"):
                run.summary[f"best/{best['metric']}"] = best["value"]
                run.summary["best/num_updates"] = best["num_updates"]
            run.summary["hydrant"] = redacted({key: summary[key] for key in TOLD if key in summary})
            if exit_status > 128 and not (self._folder / STOPPED).exists():
                run.mark_preempting()  # so that its sweep, if it belongs to one, hands it out again
            run.finish(exit_code=exit_status)

        problem = bounded(end, self._finish_timeout + GRACE_SECONDS)
        if problem is not None and not isinstance(problem, TimeoutError):
            # wandb-core is dead or stuck: the next run would talk to it, and our exit wait for it.
            bounded(teardown, GRACE_SECONDS)
        if problem is not None:
            self._fail(f"not everything was uploaded ({first_line(problem)})")

    def describe(self) -> Mapping[str, Any]:
        """`id`, null if disabled; `mode`: online, offline, disabled, failed; `path`: entity/project/id or a folder."""
        return {"id": self._id, "mode": self._mode, "path": self._path}

    def _start(self, arguments: dict[str, Any], probe_timeout: float) -> None:
        self._id = run_id(self._folder)
        refusal: str | None = None
        with own_service():
            if self._mode == "online":
                refusal = obstacle(probe_timeout)
                if refusal is None:
                    refusal = self._init("online", arguments)
                    if refusal is not None:
                        teardown()  # a start that failed keeps the id in use
            failure = None if self._run else self._init("offline", arguments)
        if failure is not None:
            self._mode = "failed"
            log.warning("W&B: no run could be started (%s); metrics.jsonl has the numbers", failure)
        elif refusal is not None:
            log.warning("W&B: %s; logging offline. Upload it later with: %s", refusal, self._sync_command)

    def _init(self, mode: Literal["online", "offline"], arguments: dict[str, Any]) -> str | None:
        """Start the run in `mode`; why it could not be started, or None."""
        try:
            import wandb

            run = wandb.init(
                **arguments,
                mode=mode,
                id=self._id,
                dir=str(self._folder),
                resume="allow",
                reinit="finish_previous",  # a run left open by a job that raised is not the next job's
                allow_val_change=True,
                settings=wandb.Settings(
                    **self._settings,
                    console="off",
                    silent=True,
                    finish_timeout_raises=True,
                    x_transaction_log_flush_interval=1.0,  # by default a kill loses up to 15 s of rows
                ),
            )
            _define_metrics(run, self._best)
        except Exception as error:  # the SDK lets out its own errors, pydantic's and the socket's
            return first_line(error)
        fell_back = self._mode != mode  # told with the reason
        self._run, self._id, self._mode = run, run.id, mode
        folder = Path(run.dir).parent
        self._path = run.path if mode == "online" else os.path.relpath(folder, self._folder)
        offline = f"hydrant sync {shlex.quote(str(self._folder))}"
        online = f"wandb sync --include-online {shlex.quote(str(folder))}"
        self._sync_command = online if mode == "online" else offline
        if not fell_back:
            log.info("W&B: %s", run.url if mode == "online" else f"offline in {folder}")
        return None

    def _send(self, send: Callable[[wandb.Run], None]) -> None:
        if self._run is None or self._mode == "failed":
            return
        try:
            send(self._run)
        except Exception as error:  # ConnectionResetError if wandb-core died, the SDK's own, a full disk
            self._fail(f"logging stopped ({first_line(error)}), the run goes on")

    def _log_checkpoint(self, path: Path, aliases: Sequence[str]) -> None:
        notes = {"num_updates": int(path.name.rpartition("_")[2])}
        named = [path.name, *aliases]
        self._send(lambda run: log_artifact(run, self._folder, path, "checkpoint", named, notes))

    def _log_artifacts(self) -> None:
        """What is kept of a run when it is over."""
        link = self._folder / "checkpoints" / self._log_checkpoints
        if link.exists():  # best or last
            self._log_checkpoint(link.resolve(), [link.name])
        config = self._folder / "config.yaml"
        if self._log_config and config.exists():
            self._send(lambda run: log_artifact(run, self._folder, config, "config", [], {}))

    def _fail(self, what: str) -> None:
        if self._mode != "failed":  # one warning is enough
            log.warning("W&B: %s. Upload what is there with: %s", what, self._sync_command)
        self._mode = "failed"


def _define_metrics(run: wandb.Run, best: tuple[str, str] | None) -> None:
    """Everything over `num_updates`; what decides the best checkpoint, and losses, with their best values."""
    run.define_metric("num_updates")
    run.define_metric("*", step_metric="num_updates")
    summaries = {"train/loss": "min", "val/loss": "min"} | dict([best] if best else [])
    for name, kind in summaries.items():
        run.define_metric(name, step_metric="num_updates", summary=f"last,{kind}")
