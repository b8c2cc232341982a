"""The W&B tracker. Whatever the network, the API key or the server do, training continues.

A run is online if an API key is configured and the server answers a probe. Otherwise it is offline, and one warning
names the command that uploads it later. With `mode: auto` and without a key, the last line of the run does so instead.
The complete record of a run is metrics.jsonl; W&B only displays it.
"""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import shlex
import shutil
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydrant import records, trackers
from hydrant.errors import ConfigError, check_known, first_line, log
from hydrant.extensions.wandb import sdk
from hydrant.files.redaction import redacted
from hydrant.runs.folder import RunFolder
from hydrant.terminal.console import log_fields

if TYPE_CHECKING:
    import wandb


PRELOAD = {"WandbTracker": ("wandb",)}

MODES = ("auto", "online", "offline", "disabled")

_NOT_COPIED = {"metrics", "best", "host", "wandb"}  # W&B has them in places of its own
SUMMARY_KEYS = [key for key in records.Summary.__struct_fields__ if key not in _NOT_COPIED]
"""The keys of summary.json that W&B's summary holds under `hydrant`; `hydrant compare` reads them there."""

ID_FILE = Path("wandb", "hydrant-run-id")
"""The file in a run folder with the id of its W&B run."""
STAGING = Path("wandb", "artifacts", "staging")
"""The folder in a run folder where files of artifacts wait for their upload."""
_DATA_DIR = "WANDB_DATA_DIR"
_IN_SWEEP = "WANDB_SWEEP_ID"  # the variable that `wandb agent` sets for the runs that it starts

GRACE_SECONDS = 5.0  # the seconds to wait for a call of the SDK after its own time limit


class WandbTracker(trackers.Tracker):
    """One W&B run for one run folder. A resumed run continues it under the same id.

    A resumed online run sends the rows that its killed process has not sent; `hydrant sync` does so for offline ones.

    `mode` is `auto` (online where possible; the variable WANDB_MODE decides if it is set), `online`, `offline` or
    `disabled`. Without a value, `project`, `group`, `job_type`, `name`, `tags` and `notes` are those of W&B's variables
    (`WANDB_PROJECT` and so on), else `hydrant` and those of the run's identity. `probe_timeout`, `init_timeout` and
    `finish_timeout` limit, in seconds, the probe of the server, the start of the run and the last upload.
    `log_checkpoints` uploads artifacts: the best or the last checkpoint when the run ends, or every checkpoint.
    `save_code` lets W&B upload the source, `machine_info` the command
    line, host, git remote, installed packages and hardware load.

    Raises:
        ConfigError: an unknown WANDB_MODE, or a name that W&B rejects.
    """

    recorded_as = "wandb"

    def __init__(
        self,
        identity: trackers.RunIdentity,
        num_updates: int,
        *,
        project: str | None,
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
        save_code: bool,
        machine_info: bool,
    ) -> None:
        self._folder = identity.folder.resolve()
        self._place = {"num_updates": num_updates, "time": 0.0}  # of the last row
        self._finish_timeout = finish_timeout
        self._run: wandb.Run | None = None
        self._session = contextlib.ExitStack()  # from the start to the end of the run
        self._sdk: sdk.SdkSession
        self._wandb: Any  # the module, when it is imported
        self._id: str | None = None
        self._mode = resolve_mode(mode)
        self._may_lack_key = mode == "auto" and not os.environ.get("WANDB_MODE")
        self._lacks_key = False
        self._log_checkpoints = log_checkpoints
        self._best = identity.best
        self._path: str | None = None
        self._sync_command = ""
        settings = {"project": project, "group": group, "job_type": job_type, "name": name, "tags": tags}
        arguments: dict[str, Any] = {
            **sdk.names_of(settings | {"notes": notes}, identity),
            "entity": entity,
            "config": dict(identity.config),
            "save_code": save_code,
        }
        self._settings: dict[str, Any] = {
            "init_timeout": init_timeout,
            "finish_timeout": finish_timeout,
            "x_disable_machine_info": not machine_info,
            "x_save_requirements": machine_info,
            "host": None if machine_info else "",  # else an offline run stores the host name
        }
        if self._mode != "disabled":
            self._start(redacted(arguments), probe_timeout)
        if self._run is not None and self._run.resumed:
            self._repeat_lost_rows(self._run, identity.history(), probe_timeout)

    @classmethod
    def warmed_up(cls, settings: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        with contextlib.suppress(ConfigError):  # the start reports it
            if (mode := resolve_mode(settings["mode"])) != "disabled":
                return sdk.warm_sdk(probe_timeout=settings["probe_timeout"] if mode == "online" else None)
        return contextlib.nullcontext()

    def log(self, row: Mapping[str, float]) -> None:
        """Log a row of history over `num_updates`. The first failure ends the logging, not the run."""
        self._place = {key: row[key] for key in ("num_updates", "time")}
        self._send(lambda run: run.log(dict(row)))

    def image(self, key: str, path: Path) -> None:
        """Log a picture at the last logged update."""
        self._log(lambda wandb: {key: wandb.Image(str(path))})

    def text(self, key: str, text: str) -> None:
        """Log a text at the last logged update, as HTML: W&B has no other type for texts of any length."""
        self._log(lambda wandb: {key: wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)})

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table at the last logged update. W&B stores it as an artifact."""
        with self._artifacts_staged():
            data = [list(row) for row in rows]
            self._log(lambda wandb: {key: wandb.Table(columns=list(columns), data=data)})

    def histograms(self, num_updates: int, histograms: Mapping[str, trackers.Histogram]) -> None:
        """Log a row of histograms over `num_updates`."""
        bins = {key: (list(h.counts), h.edges) for key, h in histograms.items()}
        self._log(lambda wandb: {key: wandb.Histogram(np_histogram=each) for key, each in bins.items()}
                  | {"num_updates": num_updates})  # fmt: skip

    def file(self, path: Path) -> None:
        """Save a file of the run folder under its path there."""

        def save(run: wandb.Run) -> None:
            copy = Path(run.dir, path.resolve().relative_to(self._folder))  # the SDK warns of links
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            run.save(copy, base_path=run.dir, policy="now", glob=False)

        self._send(save)

    def checkpoint(self, path: Path) -> None:
        """Log the checkpoint as a version of the run's artifact, with `log_checkpoints: all`."""
        if self._log_checkpoints == "all":
            self._log_checkpoint(path, [])

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """Write the best values and end the run, within `finish_timeout` and a few seconds. Raises nothing."""
        if self._run is None:
            return
        link = RunFolder(self._folder).checkpoints / self._log_checkpoints
        if link.exists():  # best or last
            self._log_checkpoint(link.resolve(), [link.name])
        run, self._run = self._run, None

        def end() -> None:
            if best := summary.get("best"):
                run.summary[f"best/{best['metric']}"] = best["value"]
                run.summary["best/num_updates"] = best["num_updates"]
            run.summary["hydrant"] = redacted({key: summary[key] for key in SUMMARY_KEYS if key in summary})
            # W&B hands out a preempted run of a sweep again. It stops one that falls behind by SIGTERM.
            if exit_status > 128 and not (_IN_SWEEP in os.environ and exit_status == 128 + signal.SIGTERM):
                run.mark_preempting()
            run.finish(exit_code=exit_status)

        with self._session:
            error = trackers.call_with_timeout(end, self._finish_timeout + GRACE_SECONDS)
            is_stuck, is_last = isinstance(error, trackers.NoAnswerError), not self._sdk.is_shared
            if is_stuck or (is_last and error is not None and not isinstance(error, TimeoutError)):
                # wandb-core is dead or stuck: the next run would use it, and this process would wait for it at exit.
                trackers.call_with_timeout(sdk.stop_core, GRACE_SECONDS)
        if error is not None:
            self._fail(f"not everything was uploaded ({first_line(error)})")
        elif self._lacks_key:
            log_fields({"W&B": f"kept offline; `{self._sync_command}` sends it, tracker=local leaves it out"})

    def describe(self) -> Mapping[str, Any]:
        """Return `id` (None if disabled), `mode` (online, offline, disabled, failed) and `path`.

        `path` is entity/project/id of an online run, or the folder of an offline one below the run folder.
        """
        return {"id": self._id, "mode": self._mode, "path": self._path}

    def _start(self, arguments: dict[str, Any], probe_timeout: float) -> None:
        self._id = _run_id(self._folder)
        online_problem: str | None = None
        self._sdk = self._session.enter_context(sdk.sdk_session())
        try:
            if self._mode == "online":
                online_problem = self._sdk.access_problem(probe_timeout) or self._init("online", arguments)
            failure = None if self._run else self._init("offline", arguments)
        finally:
            os.environ.pop(sdk.SERVICE, None)  # child processes must not use this process's wandb-core
            if self._run is None:
                self._session.close()
        if failure is not None:
            self._mode = "failed"
            reason = online_problem or failure
            log.warning("W&B: no run could be started (%s); metrics.jsonl has the numbers", reason)
        elif online_problem == sdk.NO_KEY and self._may_lack_key:
            self._lacks_key = True
        elif online_problem is not None:
            log.warning("W&B: %s; logging offline. Upload later with: %s", online_problem, self._sync_command)

    def _repeat_lost_rows(self, run: wandb.Run, rows: Sequence[Mapping[str, float]], timeout: float) -> None:
        """Log the rows that the server lacks, because the process that made them was killed before it sent them."""
        try:
            sent = sdk.last_sent_row(run.path, timeout).get("time")
        except sdk.NoAccessError as error:
            log.warning("W&B: %s; a row that was not sent before the last stop may be missing", error)
            sent = None
        if sent is None:  # or a picture of an earlier version; the summary is sometimes sent before its row
            sent = run.summary.get("time") or 0.0
        self._place["time"] = sent
        last = next((n for n, row in enumerate(rows) if row["time"] == sent), None)
        for n, row in enumerate(rows):
            # By their order if the last row is known: between two starts, the clock may have been set back.
            if row["time"] > sent if last is None else n > last:
                self.log(row)

    def _init(self, mode: Literal["online", "offline"], arguments: dict[str, Any]) -> str | None:
        """Start the W&B run in `mode`. Return the reason if that fails, else None."""
        try:
            import wandb

            self._wandb = wandb
            sdk.turn_off_extras()
            run = wandb.init(
                **arguments,
                mode=mode,
                id=self._id,
                dir=str(sdk.files_folder(self._folder)),
                resume="allow",
                reinit="create_new",  # other runs of this process go on; this one does not become `wandb.run`
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
        except Exception as error:  # the SDK raises its own errors, pydantic's and the socket's
            if mode == "online" and not self._sdk.is_shared:
                sdk.stop_core()  # after a failed start, the id is still in use there
            return first_line(error)
        is_requested_mode = self._mode == mode  # else a warning with the reason follows
        self._run, self._id, self._mode = run, run.id, mode
        folder = Path(run.dir).parent
        if mode == "online":
            self._path = run.path
            self._sync_command = f"wandb sync --include-online {_shown(folder)}"
        else:
            self._path = os.path.relpath(folder, self._folder)
            files = sdk.files_folder(self._folder)
            variable = "" if files == self._folder else f"WANDB_DIR={_shown(files)} "
            self._sync_command = f"{variable}hydrant sync {_shown(self._folder)}"
        if is_requested_mode:
            log.info("W&B: %s", run.url if mode == "online" else f"offline in {_shown(folder)}")
        return None

    def _send(self, send: Callable[[wandb.Run], None]) -> None:
        if self._run is None or self._mode == "failed":
            return
        try:
            send(self._run)
        except Exception as error:  # wandb-core died, the disk is full, an error of the SDK
            self._fail(f"logging stopped ({first_line(error)}), training continues")

    def _log(self, make: Callable[[Any], Mapping[str, Any]]) -> None:
        """Log what `make` makes of the module wandb, at the update and the time of the last row."""

        self._send(lambda run: run.log({**self._place, **make(self._wandb)}))

    def _log_checkpoint(self, path: Path, aliases: Sequence[str]) -> None:
        """Log a checkpoint as a version of the artifact `checkpoint-<run id>`.

        Its files are linked into `STAGING`: a later upload finds them although the checkpoint has been removed or the
        run folder moved. The links are safe, because files of checkpoints are never rewritten.
        """

        def send(run: wandb.Run) -> None:
            staged = self._folder / STAGING / path.name
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(parents=True)
            metadata = {"num_updates": int(path.name.rpartition("_")[2])}
            artifact = self._wandb.Artifact(f"checkpoint-{run.id}", type="checkpoint", metadata=metadata)
            for file in sorted(path.iterdir()):
                link = staged / file.name
                try:
                    link.hardlink_to(file)
                except OSError:  # a file system without links
                    shutil.copyfile(file, link)
                artifact.add_file(str(link), name=file.name, policy="immutable", skip_cache=True)
            with self._artifacts_staged():
                run.log_artifact(artifact, aliases=[path.name, *aliases])

        self._send(send)

    @contextlib.contextmanager
    def _artifacts_staged(self) -> Generator[None]:
        """Let the SDK stage files of artifacts in `STAGING` of the run folder instead of the home folder."""
        previous = {name: os.environ[name] for name in [_DATA_DIR] if name in os.environ}
        os.environ[_DATA_DIR] = str(self._folder / STAGING.parts[0])
        try:
            yield
        finally:
            del os.environ[_DATA_DIR]
            os.environ.update(previous)

    def _fail(self, reason: str) -> None:
        if self._mode != "failed":  # one warning is enough
            log.warning("W&B: %s. Upload what is there with: %s", reason, self._sync_command)
        self._mode = "failed"


def _define_metrics(run: wandb.Run, best: tuple[str, str] | None) -> None:
    """Plot all metrics over `num_updates`. The summary holds the best losses and the best deciding metric too."""
    run.define_metric("num_updates")
    run.define_metric("*", step_metric="num_updates")
    modes = {"train/loss": "min", "val/loss": "min"} | dict([best] if best else [])
    for name, mode in modes.items():
        run.define_metric(name, step_metric="num_updates", summary=f"last,{mode}")


def _shown(folder: Path) -> str:
    """Return a folder for a command in a shell, relative to the working folder if it is in it."""
    return shlex.quote(str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder))


def resolve_mode(mode: str) -> str:
    """Return `mode`, with `auto` replaced by WANDB_MODE or `online`.

    Raises:
        ConfigError: WANDB_MODE is unknown.
    """
    if mode != "auto":
        return mode
    variable = os.environ.get("WANDB_MODE") or "online"
    check_known("tracker.mode", "WANDB_MODE", variable, MODES[1:])
    return variable


def _run_id(folder: Path) -> str:
    """Return the id of a run folder's W&B run. It is written there before the run starts."""
    saved = trackers.read_id(folder, ID_FILE)
    if saved is None:
        sweep_run_id = os.environ.get("WANDB_RUN_ID") if _IN_SWEEP in os.environ else None
        saved = (sweep_run_id or secrets.token_hex(6)).encode()
    trackers.keep_id(folder, ID_FILE, saved.decode())
    return saved.decode()
