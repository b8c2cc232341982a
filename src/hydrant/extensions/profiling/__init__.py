"""torch.profiler over a window of updates: a trace, two tables and, on CUDA, a memory snapshot.

Text tables of the time of profiled updates: by phase of the loop, and by kernel, which is torch's.
"""

import bisect
import contextlib
import os
import typing
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from hydrant.clock import Clock
from hydrant.errors import ConfigError, log, log_errors
from hydrant.terminal.text import align_columns
from hydrant.training.hooks import Phase, Profiler

PHASES: tuple[str, ...] = typing.get_args(Phase)


def phase_table(events: Iterable[FunctionEvent], num_updates: int) -> str:
    """Return a table with a row for each phase that occurs. Phases follow one another and do not overlap.

    Args:
        events: of the profile.
        num_updates: how many updates were profiled.
    """
    events = list(events)
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    spans = [event for event in on_host if event.is_user_annotation and event.name in PHASES]
    spans.sort(key=lambda event: event.time_range.start)
    # An event belongs to the phase in which it starts, whatever its thread: backward passes launch kernels
    # from another one. User annotations appear on the device as well, where they are not kernels.
    starts = [span.time_range.start for span in spans]
    annotations = {event.name for event in events if event.is_user_annotation}
    # Microseconds of the kernels that a phase launched, whenever they ran.
    device = dict.fromkeys(PHASES, 0.0)
    for event in on_host:
        position = bisect.bisect_right(starts, event.time_range.start) - 1
        if position >= 0:
            launched = (kernel.duration for kernel in event.kernels if kernel.name not in annotations)
            device[spans[position].name] += sum(launched)
    rows = [["ms", "ms/update", "share", "device ms", "calls", "phase"]]
    total = sum(span.time_range.elapsed_us() for span in spans)
    for name in PHASES:
        times = [span.time_range.elapsed_us() for span in spans if span.name == name]
        host = sum(times)
        cells = [host / 1e3, host / 1e3 / num_updates, host / total, device[name] / 1e3]
        if times:
            rows.append([*("{:.3f} {:.3f} {:.1%} {:.3f}".format(*cells).split()), f"{len(times)}", name])
    if not any(device.values()):
        rows = [[*row[:3], *row[4:]] for row in rows]
    return "\n".join(line.rstrip() for line in align_columns(rows, {len(rows[0]) - 1}))


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
        for name in ("warmup", "active"):
            if self._window[name] < 1:
                raise ConfigError(f"profiler.{name}", needs="one update or more", got=self._window[name])
        self._has_snapshot = memory_snapshot and device.type == "cuda"
        self._sort_by = f"self_{device.type}_time_total"
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
            torch.cuda.memory._record_memory_history(events, stacks="python", max_entries=_MAX_ALLOCATIONS)

    def _write(self, result: profile) -> None:
        num_updates, name = self._num_updates - self._start, f"update_{self._start:08d}"
        if self._skips_writing or num_updates == 0:
            return
        with log_errors("profile"):
            phases = phase_table(result.events() or [], num_updates)
            kernels = result.key_averages().table(self._sort_by, row_limit=20, max_name_column_width=80)
            window = f"{num_updates} updates after update {self._start}, in {self._folder.name}/{name}.*"
            log.info("profile of %s\n%s\n\n%s", window, phases, kernels)
            self._folder.mkdir(parents=True, exist_ok=True)
            stem = self._folder / name
            if self._has_snapshot:
                torch.cuda.memory._dump_snapshot(f"{stem}.memory.pickle")
            Path(f"{stem}.phases.txt").write_text(f"{phases}\n", encoding="utf-8")
            Path(f"{stem}.kernels.txt").write_text(f"{kernels}\n", encoding="utf-8")
            result.export_chrome_trace(f"{stem}.pt.trace.json")
            for file in sorted(self._folder.glob(f"{name}.*")):
                self._on_file(file)
