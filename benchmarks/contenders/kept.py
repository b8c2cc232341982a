"""A long run on the digits that records the memory of its process at some updates."""

from __future__ import annotations

import gc
import json
import tracemalloc
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.cells import cached_cell_len

from benchmarks.contenders.digits_samples import wrapped_digits
from hydrant import cli
from hydrant.batch import Batch
from hydrant.data import Data
from hydrant.data.base import Stream

UPDATES: list[int] = []
"""The updates before which the memory is recorded."""
KINDS = ("objects", "bytes", "resident")
SNAPSHOTS = array("q")
"""`len(KINDS)` numbers for each snapshot, allocated before the first one so that a snapshot allocates nothing."""

WORDS = (
    "data._target_=benchmarks.contenders.kept.data", "allow_targets=[benchmarks]", "tracker=local", "name=run",
    "scheduler=cosine", "max_grad_norm=1.0", "eval_every=null", "save_every=null", "log_every=50",
)  # fmt: skip


class RecordingStream:
    """A training stream that records the memory before some updates."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        tracemalloc.start()  # after all imports, which would take minutes under tracemalloc

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        if num_updates in UPDATES:
            at = len(KINDS) * UPDATES.index(num_updates)
            SNAPSHOTS[at], SNAPSHOTS[at + 1], SNAPSHOTS[at + 2] = memory()
        yield from self._stream.micro_batches(num_updates)

    def close(self) -> None:
        self._stream.close()


def data(**settings: Any) -> Data:
    """Return the data; the config's `_target_`."""
    return wrapped_digits(RecordingStream, **settings)


def memory() -> tuple[int, int, int]:
    """Return the objects that the collector tracks, the bytes that Python allocated, and the resident KiB."""
    cached_cell_len.cache_clear()
    gc.collect()
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)
    num_bytes, _ = tracemalloc.get_traced_memory()
    return len(gc.get_objects()), num_bytes, int(resident.split()[1])


def main(updates: list[int], output: Path) -> None:
    UPDATES[:] = updates
    SNAPSHOTS.extend([0] * len(KINDS) * len(updates))
    if status := cli.main(["train", *WORDS, f"duration={updates[-1] + 2}"]):
        raise SystemExit(status)
    rows = zip(*(SNAPSHOTS[at :: len(KINDS)] for at in range(len(KINDS))), strict=True)
    output.write_text(json.dumps([dict(zip(KINDS, row, strict=True)) for row in rows]))
