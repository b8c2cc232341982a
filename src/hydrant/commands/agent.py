"""`agent`: train the runs that a W&B sweep hands out, each as `hydrant train` in its own process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hydrant.checks import check_number
from hydrant.config.command_line import Flags, check_overrides
from hydrant.config.job_folders import job_slug
from hydrant.config.option_lists import expand_lists
from hydrant.config.remote import check_recorded, remote_overrides
from hydrant.errors import ConfigError
from hydrant.files.redaction import redacted
from hydrant.runs.folder import RunStatus, mark_failed, read_overrides, runs_of_sweep
from hydrant.runs.lock import is_in_use
from hydrant.signals import killed_by
from hydrant.sweeps.fork_server.call import SignalForwarding, forward_signals
from hydrant.terminal.answer import answer, wants_json
from hydrant.terminal.console import relative, say
from hydrant.trackers.wandb import STOPPED_FILE
from hydrant.trackers.wandb_process import SERVICE
from hydrant.trackers.wandb_sdk import sdk_session
from hydrant.trackers.wandb_sweeps import Command, SweepAgent

MAX_FAILURES = 5
"""The agent stops if this many of its first runs fail in a row, because the sweep or this machine is then the cause."""

_HEARTBEAT_SECONDS = 5.0
_POLL_SECONDS = 0.2
_ID = re.compile(r"[A-Za-z0-9][\w-]{0,127}")  # of a sweep or a run: the name of its folder
_TRAIN = "import sys; from hydrant.cli import main; raise SystemExit(main(['train', *sys.argv[1:]]))"


def main(arguments: Sequence[str]) -> int:
    """Train the runs of a sweep until there are no more, and return the exit status."""
    parser = Flags("agent")
    parser.add_argument("--count", type=int)
    options, words = parser.split(arguments)
    check_number("--count", options.count, least=1)
    path, *overrides = words or [""]
    if len(path.split("/")) != 3 or not all(path.split("/")) or not _ID.fullmatch(path.split("/")[2]):
        remedy = "write ENTITY/PROJECT/SWEEP, which `wandb sweep` prints at its end"
        raise ConfigError("SWEEP", f"{path!r} is not a sweep", remedy=remedy)
    check_overrides(overrides)
    if any(word.startswith("tracker=[") and expand_lists([word])[0] != "tracker=wandb" for word in overrides):
        raise ConfigError("tracker", "the first of several needs to be wandb: tracker=[wandb,tensorboard]")
    with sdk_session(), forward_signals() as signals:
        return _Agent(SweepAgent(path), overrides, options.count, signals).run()


class _Agent:
    """Trains the runs of one sweep. The folder of a run is `outputs/<sweep>/<run>`, where it also resumes.

    Args:
        count: the number of runs after which the agent stops, if any.
    """

    def __init__(
        self, sweep: SweepAgent, overrides: Sequence[str], count: int | None, signals: SignalForwarding
    ) -> None:
        self._sweep, self._overrides, self._count, self._signals = sweep, overrides, count, signals
        self._folder = Path("outputs", sweep.sweep_id)
        self._outcomes = Counter[str]()
        self._is_over = False

    def run(self) -> int:
        """Resume interrupted runs, train those that W&B hands out, and return the exit status."""
        for folder in _interrupted_runs(self._folder):
            if not self._should_stop():
                recorded = read_overrides(folder)
                check_recorded(recorded, self._overrides)
                self._train(folder.name, recorded)
        was_idle = False
        while not self._should_stop():
            commands = self._sweep.heartbeat([])
            for command in commands:
                self._handle(command)
            if not commands:
                if not was_idle:
                    say("W&B has nothing to run at present; waiting")
                was_idle = True
                self._wait(_HEARTBEAT_SECONDS)
        counts = ", ".join(f"{num} {outcome}" for outcome, num in self._outcomes.items())
        say(f"{relative(self._folder)}: {counts or 'nothing was run'}")
        if wants_json():
            answer({"folder": relative(self._folder), "outcomes": dict(self._outcomes)})
        if self._signals.signum is not None:
            return 128 + self._signals.signum
        return int(self._outcomes[RunStatus.FAILED] > 0)

    def _should_stop(self) -> bool:
        """Return whether the agent trains no more runs."""
        num_failed, num_runs = self._outcomes[RunStatus.FAILED], self._outcomes.total()
        if num_failed == num_runs >= MAX_FAILURES and not self._is_over:
            say(f"the first {num_runs} runs have failed, so the agent stops")
            self._is_over = True
        return self._is_over or self._signals.signum is not None or num_runs == self._count

    def _handle(self, command: Command) -> None:
        if command.kind == "exit":
            self._is_over = True
        elif command.kind in ("run", "resume") and not self._should_stop():
            if not _ID.fullmatch(command.run_id):
                raise ConfigError("SWEEP", f"W&B sent {command.run_id!r}, which is not the id of a run")
            values = remote_overrides(command.values)
            name = f"tracker.name='{job_slug(values, command.values)}'"
            self._train(command.run_id, [name, *self._overrides, *values])

    def _train(self, run_id: str, overrides: Sequence[str]) -> None:
        """Train a run in its own process and report how it ended."""
        folder = self._folder / run_id
        (folder / STOPPED_FILE).unlink(missing_ok=True)
        say(f"run {run_id}: {' '.join(redacted(list(overrides)))}")
        variables = {**os.environ, **self._sweep.environment, "WANDB_RUN_ID": run_id}
        variables.pop(SERVICE, None)
        command = [sys.executable, "-c", _TRAIN, f"hydra.run.dir={folder}", *overrides]
        # In its own process group: the terminal sends Ctrl-C only to this process, which forwards it.
        process = subprocess.Popen(command, env=variables, process_group=0)
        with self._signals.to_process(process.pid):
            is_stopped = self._wait_for(process, run_id)
        self._report(folder, process.returncode, is_stopped)

    def _wait_for(self, process: subprocess.Popen[bytes], run_id: str) -> bool:
        """Wait for a run and forward W&B's commands to it. Return whether W&B stopped it."""
        is_stopped = False
        while True:
            try:
                process.wait(_HEARTBEAT_SECONDS)
                return is_stopped
            except subprocess.TimeoutExpired:
                for command in self._sweep.heartbeat([run_id]):
                    self._is_over |= command.kind == "exit"
                    if command.kind == "stop" and command.run_id == run_id and not is_stopped:
                        is_stopped = True
                        file = self._folder / run_id / STOPPED_FILE
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.touch()
                        process.send_signal(signal.SIGTERM)

    def _report(self, folder: Path, exit_status: int, is_stopped: bool) -> None:
        """Count and print how a run ended."""
        reason = ""
        if exit_status == 0:
            outcome = str(RunStatus.FINISHED)
        elif is_stopped:
            outcome = "stopped by W&B"
        elif self._signals.signum is not None and not 0 < exit_status < 128:
            outcome = "interrupted"
        else:
            outcome = str(RunStatus.FAILED)
            reason = f"exit status {exit_status}"
            if exit_status < 0:
                reason = f"killed by {killed_by(-exit_status)}"
                if folder.is_dir():  # the run could not write that itself
                    mark_failed(folder, reason)
        self._outcomes[outcome] += 1
        say(f"run {folder.name}: {outcome}{f' ({reason})' if reason else ''}, see {relative(folder)}")

    def _wait(self, seconds: float) -> None:
        """Wait for so many seconds, or until a signal arrives."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._signals.signum is None:
            time.sleep(_POLL_SECONDS)


def _interrupted_runs(folder: Path) -> list[Path]:
    """Return the runs of a sweep that were preempted, or killed on this machine, unless W&B stopped them."""
    states = (RunStatus.PREEMPTED, RunStatus.KILLED)
    interrupted = [run.path for run in runs_of_sweep(folder) if run.state in states]
    ids = [path for path in interrupted if _ID.fullmatch(path.name)]
    return [path for path in ids if not (path / STOPPED_FILE).exists() and not is_in_use(path)]
