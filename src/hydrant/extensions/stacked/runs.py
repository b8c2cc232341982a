"""Execute several runs at once in this process, as the lanes of a stack."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from hydrant.config.instantiate import share_factories
from hydrant.extensions.stacked.forward import LaneCompilation
from hydrant.extensions.stacked.train import train_lanes
from hydrant.files.user_files import raise_limit
from hydrant.runs.execute import already_finished, execute, prepare_start, start_failure
from hydrant.runs.folder import LOG
from hydrant.runs.job import Job, RunResult, unexpected_failure
from hydrant.runs.lock import exclusive
from hydrant.runs.log_setup import current_log, log_to_file, log_to_terminal
from hydrant.runs.resume import Start, starting_point
from hydrant.runs.session import Session, open_session, timeout_seconds
from hydrant.runs.summary_lines import describe_environment
from hydrant.signals import StopRequest
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.distributed.world import World
from hydrant.training.prepare.build import prepare, prepare_like
from hydrant.training.trainer import Plan, Trainer


def execute_stack(jobs: Sequence[Job]) -> list[RunResult]:
    """Run jobs of the same program at once; return their results. A single job runs as by `execute`."""
    if len(jobs) == 1:
        return [execute(jobs[0])]
    raise_limit()
    world = World.from_launcher()
    lanes = [_RunLane(job, world) for job in jobs]
    with world.process_group(timeout_seconds(jobs[0].config)), log_to_terminal(), share_factories():
        try:
            _train(lanes)
        except KeyboardInterrupt as error:  # before the handler of StopRequest is set, or a second Ctrl-C
            for lane in lanes:
                lane.interrupt(error)
    return [lane.result for lane in lanes]


def _train(lanes: Sequence[_RunLane]) -> None:
    like: Plan | None = None
    for lane in lanes:
        like = lane.prepare(like) or like
    environment = None if like is None else describe_environment(like.world.device, like.world.world_size)
    with StopRequest() as stop:
        for lane in lanes:
            lane.open(stop, environment)
        train_lanes([lane for lane in lanes if lane.is_open], stop)


class _RunLane:
    """A run that trains in a stack."""

    trainer: Trainer
    _start: Start

    def __init__(self, job: Job, world: World) -> None:
        self._job, self._world = job, world
        self._plan: Plan | None = None
        self._folder = contextlib.ExitStack()  # its lock and its log
        self._session: Session | None = None
        self._opened: contextlib.AbstractContextManager[Trainer | None] | None = None
        self.result = RunResult.stopped(signal.SIGINT, "stopped by SIGINT before it began")

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def prepare(self, like: Plan | None) -> Plan | None:
        """Lock the folder and prepare the run, on the data of another plan if there is one. Return the plan; None if
        the run is finished or cannot begin, with the reason in `result`.
        """
        job = self._job
        try:
            self._folder.enter_context(exclusive(job.folder))
            self._folder.enter_context(log_to_file(job.folder / LOG))
            with self.active():
                self._start = starting_point(job.config, job.folder)
                if self._start.is_finished:
                    self.result = already_finished(job, self._start, self._world)
                    return None
                plan = prepare(job.config) if like is None else prepare_like(job.config, like)
                if like is None:
                    plan = dataclasses.replace(plan, compilation=LaneCompilation(plan.compilation))
                self._plan = plan
                prepare_start(plan, self._start)
        except (Exception, SystemExit) as error:
            self._fail(error)
        return self._plan

    def open(self, stop: StopRequest, environment: Mapping[str, Any] | None) -> None:
        """Start the run, if it is prepared. `environment` is that of all lanes."""
        if self._plan is None:
            self._folder.close()
            return
        try:
            with self.active():
                self._session = open_session(self._job, self._plan, self._start, Watchdog(), environment)
                self._opened = self._session.opened(stop)
                trainer = self._opened.__enter__()
        except (Exception, SystemExit) as error:
            self._fail(error)
            return
        if trainer is None:
            self.end()
        else:
            self.trainer = trainer

    def end(self, error: BaseException | None = None) -> None:
        """End the run, and give up its folder."""
        opened, self._opened = self._opened, None
        assert opened is not None and self._session is not None
        try:
            with self.active():
                opened.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
            self.result = self._session.result
        except (Exception, SystemExit) as raised:
            self.result = unexpected_failure(raised, self._job)
        self._session = self._plan = None
        self._folder.close()

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """End the run at once, if it has not ended."""
        if self.is_open:
            self.end(error)
        self._folder.close()

    @contextlib.contextmanager
    def active(self) -> Generator[None]:
        token = current_log.set(self._job.folder / LOG)
        try:
            yield
        finally:
            current_log.reset(token)

    def _fail(self, error: BaseException) -> None:
        with self.active():
            self.result = start_failure(error, self._job, self._world)
        self._plan = self._opened = None
        self._folder.close()
