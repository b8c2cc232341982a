"""Where the time of profiled updates went, as text: by phase of the loop, and by kernel."""

from __future__ import annotations

import bisect
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent, FunctionEventAvg

from hydrant.profiling.base import Phase
from hydrant.tables import aligned

PHASES: tuple[str, ...] = typing.get_args(Phase)

_NUM_KERNELS = 20  # rows
_NAME_WIDTH = 80


@dataclass
class PhaseTime:
    """Microseconds in one phase, all told."""

    calls: int = 0
    host: float = 0.0
    device: float = 0.0  # of what it launched, whenever that ran


def phase_times(events: Iterable[FunctionEvent]) -> dict[str, PhaseTime]:
    """The time in each phase that occurs. They follow one another, so no time is in two of them."""
    events = list(events)
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    spans = sorted((e for e in on_host if _is_phase(e)), key=lambda event: event.time_range.start)
    times = {name: PhaseTime() for name in PHASES if any(span.name == name for span in spans)}
    for span in spans:
        times[span.name].calls += 1
        times[span.name].host += span.time_range.elapsed_us()
    # A backward pass launches its kernels from another thread: the phase is told by the time alone. Marks of
    # the host appear on the device too, and are no kernels.
    starts = [span.time_range.start for span in spans]
    marks = {event.name for event in events if event.is_user_annotation}
    for event in on_host:
        position = bisect.bisect_right(starts, event.time_range.start) - 1
        if position >= 0:
            launched = (kernel.duration for kernel in event.kernels if kernel.name not in marks)
            times[spans[position].name].device += sum(launched)
    return times


def phase_table(events: Iterable[FunctionEvent], num_updates: int) -> str:
    """A row per phase; `num_updates` are those profiled."""
    times = phase_times(events)
    total = sum(time.host for time in times.values())
    on_device = any(time.device for time in times.values())
    header = ["ms", "ms/update", "share", *(["device ms"] if on_device else []), "calls"]
    rows = [
        [
            f"{time.host / 1e3:.3f}",
            f"{time.host / 1e3 / num_updates:.3f}",
            f"{time.host / total:.1%}",
            *([f"{time.device / 1e3:.3f}"] if on_device else []),
            f"{time.calls}",
            name,
        ]
        for name, time in times.items()
    ]
    return _lines([[*header, "phase"], *rows])


def kernel_table(averages: Iterable[FunctionEventAvg]) -> str:
    """The kernels with the most time of their own on the device or, where the host is the device, the operators."""
    averages = list(averages)
    found = [a for a in averages if a.device_type != DeviceType.CPU and not a.is_user_annotation]
    title, times = "kernel", [(a.self_device_time_total, a.count, str(a.key)) for a in found]
    if not found:
        title = "operator"
        times = [(a.self_cpu_time_total, a.count, str(a.key)) for a in averages if not _is_mark(str(a.key))]
    total = sum(time for time, _, _ in times)
    rows = [
        [f"{time / 1e3:.3f}", f"{time / total:.1%}", f"{count}", name[:_NAME_WIDTH]]
        for time, count, name in sorted(times, reverse=True)[:_NUM_KERNELS]
    ]
    return _lines([["self ms", "share", "calls", title], *rows])


def _is_phase(event: FunctionEvent) -> bool:
    return bool(event.is_user_annotation) and event.name in PHASES


def _is_mark(name: str) -> bool:
    """Whether it is a span that holds operators, and none itself."""
    return name in PHASES or name.startswith(("ProfilerStep", "Optimizer."))


def _lines(rows: Sequence[Sequence[str]]) -> str:
    """Numbers to the right, and the name last."""
    return "\n".join(line.rstrip() for line in aligned(rows, {len(rows[0]) - 1}))
