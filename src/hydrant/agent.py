"""`agent`: the runs that a W&B sweep hands out, each as `hydrant train` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hydrant.config.arguments import Flags, check_overrides
from hydrant.config.compose import job_slug
from hydrant.errors import ConfigError, shown
from hydrant.isolation import Forwarding, forwarding
from hydrant.job import relative, say
from hydrant.locking import exclusive
from hydrant.runs import mark_failed, overrides_of, read_run
from hydrant.trackers.wandb import STOPPED
from hydrant.trackers.wandb_access import own_service
from hydrant.trackers.wandb_sweeps import Command, SweepAgent

MAX_FAILURES = 5
"""When so many runs have failed and none has not, the sweep's values do not fit, or this machine does not."""

_ASK_SECONDS = 5.0
_WAKE_SECONDS = 0.2
_TRAIN = "import sys; from hydrant.cli import main; raise SystemExit(main(['train', *sys.argv[1:]]))"


def main(arguments: Sequence[str]) -> int:
    """Run what a sweep hands out, until there is no more; the exit status."""
    parser = Flags("agent")
    parser.add_argument("--count", type=int)
    options, words = parser.split(arguments)
    if options.count is not None and options.count < 1:
        raise ConfigError("--count", f"{options.count} runs cannot be made; give 1 or more")
    path, *overrides = words or [""]
    if len(path.split("/")) != 3 or not all(path.split("/")):
        told = f"{path!r} is no sweep; write ENTITY/PROJECT/SWEEP, as `wandb sweep` says at its end"
        raise ConfigError("SWEEP", told)
    check_overrides(overrides)
    with own_service(), forwarding() as signals:
        return _Work(SweepAgent(path), overrides, options.count, signals).do()


class _Work:
    """What one agent does. A run's folder is `outputs/<sweep>/<run>`: handed out again, it goes on there."""

    def __init__(
        self, agent: SweepAgent, overrides: Sequence[str], count: int | None, signals: Forwarding
    ) -> None:
        self._agent, self._overrides, self._count, self._signals = agent, overrides, count, signals
        self._folder = Path("outputs", agent.sweep_id)
        self._ends = Counter[str]()
        self._is_over = False

    def do(self) -> int:
        """The exit status, after telling what came of the runs."""
        for folder in _interrupted(self._folder):
            if not self._is_enough():
                self._train(folder.name, overrides_of(folder))
        has_told = False
        while not self._is_enough():
            commands = self._agent.ask([])
            for command in commands:
                self._obey(command)
            if not commands:
                if not has_told:
                    say("W&B has nothing to run at present; waiting")
                has_told = True
                self._wait(_ASK_SECONDS)
        told = ", ".join(f"{num} {end}" for end, num in self._ends.items()) or "nothing was run"
        say(f"{relative(self._folder)}: {told}")
        if self._signals.signum is not None:
            return 128 + self._signals.signum
        return int(self._ends["failed"] > 0)

    def _is_enough(self) -> bool:
        num_failed, num_runs = self._ends["failed"], self._ends.total()
        if num_failed == num_runs >= MAX_FAILURES and not self._is_over:
            say(f"the first {num_runs} runs have failed, so no more are asked for")
            self._is_over = True
        return self._is_over or self._signals.signum is not None or num_runs == self._count

    def _obey(self, command: Command) -> None:
        if command.kind == "exit":
            self._is_over = True
        elif command.kind in ("run", "resume") and not self._is_enough():
            own = [f"{key}={v if isinstance(v, str) else shown(v)}" for key, v in command.values.items()]
            name = f"tracker.name='{job_slug(own, command.values)}'"
            self._train(command.run_id, [name, *self._overrides, *own])

    def _train(self, run_id: str, overrides: Sequence[str]) -> None:
        folder = self._folder / run_id
        (folder / STOPPED).unlink(missing_ok=True)
        say(f"run {run_id}: {' '.join(overrides)}")
        variables = {**os.environ, **self._agent.environment, "WANDB_RUN_ID": run_id}
        variables.pop("WANDB_SERVICE", None)
        command = [sys.executable, "-c", _TRAIN, f"hydra.run.dir={folder}", *overrides]
        # In a group of its own: Ctrl-C in the terminal reaches this process alone, which passes it on.
        process = subprocess.Popen(command, env=variables, process_group=0)
        with self._signals.reaching(process.pid):
            was_stopped = self._watch(process, run_id)
        self._settle(folder, process.returncode, was_stopped)

    def _watch(self, process: subprocess.Popen[bytes], run_id: str) -> bool:
        """Wait for a run, and pass on what W&B says meanwhile; whether it asked to stop."""
        was_stopped = False
        while True:
            try:
                process.wait(_ASK_SECONDS)
                return was_stopped
            except subprocess.TimeoutExpired:
                for command in self._agent.ask([run_id]):
                    self._is_over |= command.kind == "exit"
                    if command.kind == "stop" and command.run_id == run_id and not was_stopped:
                        was_stopped = True
                        note = self._folder / run_id / STOPPED
                        note.parent.mkdir(parents=True, exist_ok=True)
                        note.touch()
                        process.send_signal(signal.SIGTERM)

    def _settle(self, folder: Path, status: int, was_stopped: bool) -> None:
        """Note and tell how a run ended."""
        reason = ""
        if status == 0:
            end = "finished"
        elif was_stopped:
            end = "stopped by W&B"
        elif self._signals.signum is not None and not 0 < status < 128:
            end = "interrupted"
        else:
            end = "failed"
            reason = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
            if status < 0 and folder.is_dir():  # it could not say so itself
                mark_failed(folder, reason)
        self._ends[end] += 1
        say(f"run {folder.name}: {end}{f' ({reason})' if reason else ''}, see {relative(folder)}")

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._signals.signum is None:
            time.sleep(_WAKE_SECONDS)


def _interrupted(folder: Path) -> list[Path]:
    """The runs of a sweep that were stopped or killed on this machine, and that W&B did not stop."""
    found = sorted(path for path in folder.glob("*") if (path / ".hydra").is_dir())
    begun = [path for path in found if read_run(path).state in ("preempted", "killed")]
    return [path for path in begun if not (path / STOPPED).exists() and _is_left(path)]


def _is_left(folder: Path) -> bool:
    try:
        with exclusive(folder):
            return True
    except ConfigError:
        return False
