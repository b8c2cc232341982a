"""torch.profiler over a window of updates: a trace, two tables and, on CUDA, a snapshot of the memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.logs import log, told
from hydrant.profiling.base import Phase
from hydrant.profiling.tables import kernel_table, phase_table

_MAX_ALLOCATIONS = 100_000  # in the snapshot: the newest


class TorchProfiler:
    """Profiles a window of updates, counted from where the process begins: after a resume, all settles anew.

    Args:
        wait: how long nothing is done; a duration.
        warmup: how long the profiler is on and what it finds is left out, for its start is slow; a duration.
        active: how long is profiled; a duration.
        record_shapes, profile_memory, with_stack: torch.profiler's own.
        memory_snapshot: note every allocation meanwhile; on CUDA.
    """

    is_on = True

    def __init__(
        self,
        device: torch.device,
        clock: Clock,
        *,
        wait: object,
        warmup: object,
        active: object,
        record_shapes: bool,
        profile_memory: bool,
        with_stack: bool,
        memory_snapshot: bool,
    ) -> None:
        lengths = {"wait": wait, "warmup": warmup, "active": active}
        self._window = {name: clock.updates(length, f"profiler.{name}") for name, length in lengths.items()}
        _check_window(self._window, clock.total_updates)
        self._has_snapshot = memory_snapshot and device.type == "cuda"
        self._settings: dict[str, Any] = {
            "activities": [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])],
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "acc_events": True,  # without effect, for there is one cycle; torch 2.11 warns otherwise
        }
        self._profile: profile | None = None
        self._is_recording = False
        self._is_hurried = False  # whoever stopped the run does not wait for anything
        self._span: record_function | None = None

    @contextlib.contextmanager
    def watching(self, folder: Path, num_updates: int, keep: Callable[[Path], None]) -> Generator[None]:
        """Profile the window, or what there is of it where the run ends within it."""
        self._num_updates = num_updates
        self._first = num_updates + self._window["wait"] + self._window["warmup"]
        self._folder, self._keep = folder, keep
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it tells stderr of each start and stop
        self._profile = profile(
            schedule=schedule(**self._window, repeat=1), on_trace_ready=self._write, **self._settings
        )
        self._profile.start()
        try:
            yield
        except KeyboardInterrupt:
            self._is_hurried = True
            raise
        finally:
            with told("profile"):
                self._stop()

    def enter(self, phase: Phase, num_updates: int) -> None:
        del num_updates
        if self._is_recording:
            self._leave()
            self._span = record_function(phase)
            self._span.__enter__()

    def advance(self) -> None:
        if self._profile is None:
            return
        self._leave()
        self._num_updates += 1
        self._profile.step()
        if self._num_updates == self._first:
            self._is_recording = True
            self._record_memory("all")
        elif self._num_updates == self._first + self._window["active"]:
            self._stop()
        self.enter("other", self._num_updates)

    def _leave(self) -> None:
        if self._span is not None:
            self._span.__exit__(None, None, None)
            self._span = None

    def _stop(self) -> None:
        """The window is over, or the run."""
        if self._profile is None:
            return
        self._leave()
        if self._is_hurried:
            log.warning("the profile is not written")
        elif self._num_updates <= self._first:
            ended = f"the run ended after update {self._num_updates}"
            log.warning("nothing is profiled: %s, and update %d would be the first", ended, self._first + 1)
        self._profile.stop()  # writes, if it has not yet
        self._record_memory(None)
        self._profile, self._is_recording = None, False

    def _record_memory(self, which: Literal["all"] | None) -> None:
        if self._has_snapshot:
            torch.cuda.memory._record_memory_history(which, stacks="python", max_entries=_MAX_ALLOCATIONS)  # pyright: ignore[reportPrivateUsage]

    def _write(self, found: profile) -> None:
        num_updates, name = self._num_updates - self._first, f"update_{self._first:08d}"
        if self._is_hurried or num_updates == 0:
            return
        with told("profile"):
            phases = phase_table(found.events() or [], num_updates)
            kernels = kernel_table(found.key_averages())
            where = f"{num_updates} updates after update {self._first}, in {self._folder.name}/{name}.*"
            log.info("profile of %s\n%s\n\n%s", where, phases, kernels)
            self._folder.mkdir(parents=True, exist_ok=True)
            stem = self._folder / name
            if self._has_snapshot:
                torch.cuda.memory._dump_snapshot(f"{stem}.memory.pickle")  # pyright: ignore[reportPrivateUsage]
            Path(f"{stem}.phases.txt").write_text(f"{phases}\n", encoding="utf-8")
            Path(f"{stem}.kernels.txt").write_text(f"{kernels}\n", encoding="utf-8")
            _export(found, Path(f"{stem}.pt.trace.json"))
            for file in sorted(self._folder.glob(f"{name}.*")):
                self._keep(file)


def _check_window(window: Mapping[str, int], total_updates: int) -> None:
    """Raises ConfigError where nothing would be profiled."""
    for name in ("warmup", "active"):
        if window[name] < 1:
            raise ConfigError(f"profiler.{name}", f"needs one update or more, not {window[name]}")
    if sum(window.values()) > total_updates:
        key = "active" if window["warmup"] + window["active"] > total_updates else "wait"
        lengths = " + ".join(f"{length} ({name})" for name, length in window.items())
        raise ConfigError(
            f"profiler.{key}",
            f"a window of {lengths} updates is more than the run's {total_updates}; give less, or a longer duration",
        )


def _export(found: profile, path: Path) -> None:
    """Write the trace, all of it or none.

    Raises:
        OSError: it cannot be written. torch tells nothing of that.
    """
    path.unlink(missing_ok=True)
    found.export_chrome_trace(str(path))  # aside, and renamed
    if not path.exists():
        path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
        raise OSError(f"{path.name} cannot be written; is the disk full?")
