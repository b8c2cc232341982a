"""Text tables of the time of profiled updates: by phase of the loop, and by kernel."""

from __future__ import annotations

import bisect
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent, FunctionEventAvg

from hydrant.terminal.text_table import align_columns
from hydrant.training.profiling.base import Phase

PHASES: tuple[str, ...] = typing.get_args(Phase)

_MAX_KERNELS = 20  # rows of the table of kernels
_MAX_NAME = 80  # characters


@dataclass
class PhaseTime:
    """Total microseconds in one phase."""

    calls: int = 0
    host: float = 0.0
    device: float = 0.0  # of the kernels it launched, whenever they ran


def phase_times(events: Iterable[FunctionEvent]) -> dict[str, PhaseTime]:
    """Return the time in each phase that occurs. Phases follow one another and do not overlap."""
    events = list(events)
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    spans = [event for event in on_host if event.is_user_annotation and event.name in PHASES]
    spans.sort(key=lambda event: event.time_range.start)
    times = {name: PhaseTime() for name in PHASES if any(span.name == name for span in spans)}
    for span in spans:
        times[span.name].calls += 1
        times[span.name].host += span.time_range.elapsed_us()
    # An event belongs to the phase in which it starts, whatever its thread: backward passes launch kernels
    # from another one. User annotations appear on the device as well, where they are not kernels.
    starts = [span.time_range.start for span in spans]
    annotations = {event.name for event in events if event.is_user_annotation}
    for event in on_host:
        position = bisect.bisect_right(starts, event.time_range.start) - 1
        if position >= 0:
            launched = (kernel.duration for kernel in event.kernels if kernel.name not in annotations)
            times[spans[position].name].device += sum(launched)
    return times


def phase_table(events: Iterable[FunctionEvent], num_updates: int) -> str:
    """Return a table with a row for each phase. `num_updates`: how many updates were profiled."""
    times = phase_times(events)
    total = sum(time.host for time in times.values())
    on_device = any(time.device for time in times.values())
    header = ["ms", "ms/update", "share", *(["device ms"] if on_device else []), "calls", "phase"]
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
    return _lines([header, *rows])


def kernel_table(averages: Iterable[FunctionEventAvg]) -> str:
    """Return a table of the kernels with the most self time; on a CPU, of the operators."""
    averages = list(averages)
    kernels = [a for a in averages if a.device_type != DeviceType.CPU and not a.is_user_annotation]
    title, times = "kernel", [(a.self_device_time_total, a.count, str(a.key)) for a in kernels]
    if not kernels:
        title = "operator"
        times = [(a.self_cpu_time_total, a.count, str(a.key)) for a in averages if not _is_span(str(a.key))]
    total = sum(time for time, _, _ in times)
    rows = [
        [f"{time / 1e3:.3f}", f"{time / total:.1%}", f"{count}", name[:_MAX_NAME]]
        for time, count, name in sorted(times, reverse=True)[:_MAX_KERNELS]
    ]
    return _lines([["self ms", "share", "calls", title], *rows])


def _is_span(name: str) -> bool:
    """Return whether this is the name of a span that contains operators, and not of an operator."""
    return name in PHASES or name.startswith(("ProfilerStep", "Optimizer."))


def _lines(rows: Sequence[Sequence[str]]) -> str:
    """Align the numbers to the right and the name, which is last, to the left."""
    return "\n".join(line.rstrip() for line in align_columns(rows, {len(rows[0]) - 1}))
