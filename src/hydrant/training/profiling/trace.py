"""torch.profiler over a window of updates: a trace, two tables and, on CUDA, a memory snapshot."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from hydrant.clock import Clock
from hydrant.errors import ConfigError, log, log_errors
from hydrant.training.profiling.base import Phase, Profiler
from hydrant.training.profiling.tables import kernel_table, phase_table

_MAX_ALLOCATIONS = 100_000  # the snapshot holds the newest ones


class TorchProfiler(Profiler):
    """Profiles a window of updates.

    The window is counted from the first update of the process, also after a resume, because every process has to
    warm up again.

    Args:
        wait: updates, or another duration, before the profiler starts.
        warmup: updates that are profiled but discarded, because the start of the profiler is slow.
        active: updates in the profile.
        record_shapes, profile_memory, with_stack: passed to torch.profiler.
        memory_snapshot: CUDA: record every allocation in the window, for pytorch.org/memory_viz.
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
            "acc_events": True,  # has no effect in a single cycle; without it torch 2.11 warns
        }
        self._profile: profile | None = None
        self._is_recording = False
        self._skips_writing = False  # set by a second Ctrl-C: the process must end at once
        self._span: record_function | None = None

    @contextlib.contextmanager
    def record(self, folder: Path, num_updates: int, on_file: Callable[[Path], None]) -> Generator[None]:
        """Profile the window, or the part of it before the run ends."""
        self._num_updates = num_updates
        self._start = num_updates + self._window["wait"] + self._window["warmup"]
        self._folder, self._on_file = folder, on_file
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else Kineto prints each start and stop to stderr
        self._profile = profile(
            schedule=schedule(**self._window, repeat=1), on_trace_ready=self._write, **self._settings
        )
        self._profile.start()
        try:
            yield
        except KeyboardInterrupt:
            self._skips_writing = True
            raise
        finally:
            with log_errors("profile"):
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
        if self._num_updates == self._start:
            self._is_recording = True
            self._record_memory("all")
        elif self._num_updates == self._start + self._window["active"]:
            self._stop()
        self.enter("other", self._num_updates)

    def _leave(self) -> None:
        if self._span is not None:
            self._span.__exit__(None, None, None)
            self._span = None

    def _stop(self) -> None:
        """Stop the profiler, which writes the profile: at the end of the window, or of a run that ends earlier."""
        if self._profile is None:
            return
        self._leave()
        if self._skips_writing:
            log.warning("the profile is not written")
        elif self._num_updates <= self._start:
            ended = f"the run ended after update {self._num_updates}"
            log.warning(
                "nothing was profiled, because %s and update %d would be the first", ended, self._start + 1
            )
        self._profile.stop()  # calls _write, unless that was done before
        self._record_memory(None)
        self._profile, self._is_recording = None, False

    def _record_memory(self, events: Literal["all"] | None) -> None:
        if self._has_snapshot:
            torch.cuda.memory._record_memory_history(events, stacks="python", max_entries=_MAX_ALLOCATIONS)  # pyright: ignore[reportPrivateUsage]

    def _write(self, result: profile) -> None:
        num_updates, name = self._num_updates - self._start, f"update_{self._start:08d}"
        if self._skips_writing or num_updates == 0:
            return
        with log_errors("profile"):
            phases = phase_table(result.events() or [], num_updates)
            kernels = kernel_table(result.key_averages())
            window = f"{num_updates} updates after update {self._start}, in {self._folder.name}/{name}.*"
            log.info("profile of %s\n%s\n\n%s", window, phases, kernels)
            self._folder.mkdir(parents=True, exist_ok=True)
            stem = self._folder / name
            if self._has_snapshot:
                torch.cuda.memory._dump_snapshot(f"{stem}.memory.pickle")  # pyright: ignore[reportPrivateUsage]
            Path(f"{stem}.phases.txt").write_text(f"{phases}\n", encoding="utf-8")
            Path(f"{stem}.kernels.txt").write_text(f"{kernels}\n", encoding="utf-8")
            _export(result, Path(f"{stem}.pt.trace.json"))
            for file in sorted(self._folder.glob(f"{name}.*")):
                self._on_file(file)


def _check_window(window: Mapping[str, int], total_updates: int) -> None:
    """Raise ConfigError if nothing would be profiled."""
    for name in ("warmup", "active"):
        if window[name] < 1:
            raise ConfigError(f"profiler.{name}", f"needs one update or more, not {window[name]}")
    if sum(window.values()) > total_updates:
        key = "active" if window["warmup"] + window["active"] > total_updates else "wait"
        lengths = " + ".join(f"{length} ({name})" for name, length in window.items())
        problem = f"a window of {lengths} updates is longer than the run of {total_updates}"
        raise ConfigError(f"profiler.{key}", problem, remedy="shorten it or raise duration")


def _export(result: profile, path: Path) -> None:
    """Write the whole trace, or no file.

    Raises:
        OSError: the file cannot be written. torch itself reports no such error.
    """
    path.unlink(missing_ok=True)
    result.export_chrome_trace(str(path))  # torch writes a .tmp file and renames it
    if not path.exists():
        path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
        raise OSError(f"{path.name} cannot be written; is the disk full?")
