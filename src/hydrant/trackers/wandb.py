"""Weights & Biases, as a sink that may fail: whatever network, key or server do, the run goes on.

Online if a key is configured and the server answers a probe of our own; else offline, with one warning that
names the `wandb sync` command. The record is metrics.jsonl; what is here is for looking at.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydrant.errors import ConfigError, unknown_name
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.wandb_access import bounded, obstacle, own_service, reason, teardown

if TYPE_CHECKING:
    import wandb

log = logging.getLogger("hydrant")

PRELOAD = ("wandb",)

MODES = ("auto", "online", "offline", "disabled")
MAX_NAME = 128  # characters of a project, run, group or job type that W&B takes
MAX_TAG = 64
GRACE_SECONDS = 5.0  # what the SDK gets beyond its own time limit before it is left to itself


class WandbTracker:
    """One W&B run for one run folder, the same again after a resume.

    `mode` is `auto` (online where possible; the environment's WANDB_MODE decides if set), `online`,
    `offline` or `disabled`. `group`, `job_type`, `name` and `tags` default to the run's identity.
    `probe_timeout`, `init_timeout`, `finish_timeout` bound, in seconds, the question whether W&B answers,
    the start, the last upload. `save_code` lets W&B take the source, `machine_info` argv, host, git and load.

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
        save_code: bool,
        machine_info: bool,
    ) -> None:
        self._folder = identity.folder.resolve()
        self._num_updates = num_updates
        self._finish_timeout = finish_timeout
        self._run: wandb.Run | None = None
        self._id = _run_id(self._folder)
        self._mode = _resolve_mode(mode)
        self._path: str | None = None
        self._sync_command = ""
        arguments: dict[str, Any] = {
            "project": _project(project),
            "entity": entity,
            "group": _name("group", group, identity.group),
            "job_type": _name("job_type", job_type, identity.job_type),
            "name": _name("name", name, identity.name),
            "tags": _tags(tags, identity.tags),
            "notes": notes,
            "config": dict(identity.config),
            "save_code": save_code,
        }
        self._settings: dict[str, Any] = {
            "init_timeout": init_timeout,
            "finish_timeout": finish_timeout,
            "x_disable_machine_info": not machine_info,
            "host": None if machine_info else "",  # an offline run would name it all the same
        }
        if self._mode != "disabled":
            self._start(arguments, probe_timeout)

    def log(self, row: Mapping[str, float]) -> None:
        """One row of history, over `num_updates`. The first failure ends the logging, never the run."""
        self._num_updates = int(row["num_updates"])
        self._send(lambda run: run.log(dict(row)))

    def image(self, key: str, path: Path) -> None:
        """A picture, shown at the last logged update."""

        def send(run: wandb.Run) -> None:
            import wandb

            run.log({"num_updates": self._num_updates, key: wandb.Image(str(path))})

        self._send(send)

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """Write the best values, end the run, in `finish_timeout` and a few seconds. Raises nothing."""
        run, self._run = self._run, None
        if run is None:
            return

        def end() -> None:
            if best := summary.get("best"):
                run.summary[f"best/{best['metric']}"] = best["value"]
                run.summary["best/num_updates"] = best["num_updates"]
            run.finish(exit_code=exit_status)

        problem = bounded(end, self._finish_timeout + GRACE_SECONDS)
        if problem is not None and not isinstance(problem, TimeoutError):
            # wandb-core is dead or stuck: the next run would talk to it, and our exit wait for it.
            bounded(teardown, GRACE_SECONDS)
        if problem is not None:
            self._fail(f"not everything was uploaded ({reason(problem)})")

    def describe(self) -> Mapping[str, Any]:
        """`id`; `mode`: online, offline, disabled, failed; `path`: entity/project/id, or the local folder."""
        return {"id": self._id, "mode": self._mode, "path": self._path}

    def _start(self, arguments: dict[str, Any], probe_timeout: float) -> None:
        # Read when the SDK starts. Without the first, a run reports to the vendor: 10 s at exit where packets
        # are swallowed. Without the second, the start asks for the account's name, with no time limit.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_QUIET", "true")
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
            run.define_metric("num_updates")
            run.define_metric("*", step_metric="num_updates")
        except Exception as error:  # the SDK lets out its own errors, pydantic's and the socket's
            return reason(error)
        fell_back = self._mode != mode  # told with the reason
        self._run, self._id, self._mode = run, run.id, mode
        folder = Path(run.dir).parent
        self._path = run.path if mode == "online" else os.path.relpath(folder, self._folder)
        option = "--include-online " if mode == "online" else ""
        self._sync_command = f"wandb sync {option}{shlex.quote(str(folder))}"
        if not fell_back:
            log.info("W&B: %s", run.url if mode == "online" else f"offline in {folder}")
        return None

    def _send(self, send: Callable[[wandb.Run], None]) -> None:
        if self._run is None or self._mode == "failed":
            return
        try:
            send(self._run)
        except Exception as error:  # ConnectionResetError if wandb-core died, the SDK's own, a full disk
            self._fail(f"logging stopped ({reason(error)}), the run goes on")

    def _fail(self, what: str) -> None:
        if self._mode != "failed":  # one warning is enough
            log.warning("W&B: %s. Upload what is there with: %s", what, self._sync_command)
        self._mode = "failed"


def _run_id(folder: Path) -> str:
    """The id this folder had before, else one its path alone decides: the same command finds its run."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["wandb"]["id"]
        if re.fullmatch(r"[\w-]+", stored):
            return stored
    return _sha1(str(folder))[:12]


def _resolve_mode(mode: str) -> str:
    if mode not in MODES:
        raise unknown_name("tracker.mode", "mode", str(mode), MODES)
    if mode != "auto":
        return mode
    wanted = os.environ.get("WANDB_MODE") or "online"
    if wanted not in MODES[1:]:
        raise ConfigError(
            "tracker.mode", f"auto follows WANDB_MODE={wanted!r}; it knows {', '.join(MODES[1:])}"
        )
    return wanted


def _project(project: str) -> str:
    if re.search(r"[/\\#?%:]", _checked("tracker.project", project, MAX_NAME)):
        raise ConfigError("tracker.project", rf"{project!r}: W&B takes none of the characters / \ # ? % :")
    return str(project)


def _name(key: str, given: str | None, own: str) -> str:
    return _cut(own, MAX_NAME) if given is None else _checked(f"tracker.{key}", given, MAX_NAME)


def _tags(given: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    if given is None:
        return [_cut(tag, MAX_TAG) for tag in own if tag]
    return [_checked("tracker.tags", tag, MAX_TAG) for tag in given]


def _checked(key: str, given: str, limit: int) -> str:
    """What the user wrote, as text: YAML reads some names as numbers."""
    text = str(given)
    if not 1 <= len(text) <= limit:
        raise ConfigError(key, f"{text!r} has {len(text)} characters, W&B takes 1 to {limit}")
    return text


def _cut(text: str, limit: int) -> str:
    """A name made from overrides, cut to fit; a hash of the whole keeps different ones different."""
    return text if len(text) <= limit else f"{text[: limit - 9]}~{_sha1(text)[:8]}"


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
