"""A long run on the digits that notes at some updates what its process holds."""

from __future__ import annotations

import gc
import json
import tracemalloc
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydrant import cli
from hydrant.batch import Batch
from hydrant.data import Data, Source, StreamSpec, digits
from hydrant.data.base import Stream

LOOKS: list[int] = []
"""The updates before which it looks."""
KINDS = ("objects", "bytes", "resident")
FOUND = array("q")
"""So many numbers for each look, in memory that is there before the first one: a look is to leave nothing."""

WORDS = (
    "data._target_=benchmarks.contenders.kept.data", "allow_targets=[benchmarks]", "tracker=local", "name=run",
    "scheduler=cosine", "max_grad_norm=1.0", "eval_every=null", "save_every=null", "log_every=50",
)  # fmt: skip


class Looking:
    """A training stream that looks around."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        tracemalloc.start()  # all is imported: that would take minutes

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        if num_updates in LOOKS:
            at = len(KINDS) * LOOKS.index(num_updates)
            FOUND[at], FOUND[at + 1], FOUND[at + 2] = held()
        yield from self._stream.micro_batches(num_updates)

    def close(self) -> None:
        self._stream.close()


class Training:
    """The training samples, whose stream looks around."""

    def __init__(self, source: Source) -> None:
        self._source, self.num_samples = source, source.num_samples

    def stream(self, spec: StreamSpec) -> Looking:
        return Looking(self._source.stream(spec))

    def batches(self, spec: StreamSpec, batch_size: int) -> Any:
        return self._source.batches(spec, batch_size)

    def first(self, num_samples: int) -> Source:
        return self._source.first(num_samples)


def data(**settings: Any) -> Data:
    """What the config calls."""
    own = digits(**settings)
    return Data(Training(own.train), own.val, own.input_shape, own.num_classes)


def held() -> tuple[int, int, int]:
    """Objects that the collector knows, bytes that Python has asked for, and KiB of the process."""
    gc.collect()
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)
    num_bytes, _ = tracemalloc.get_traced_memory()
    return len(gc.get_objects()), num_bytes, int(resident.split()[1])


def main(looks: list[int], output: Path) -> None:
    LOOKS[:] = looks
    FOUND.extend([0] * len(KINDS) * len(looks))
    status = cli.main(["train", *WORDS, f"duration={looks[-1] + 2}"])
    if status:
        raise SystemExit(status)
    rows = zip(*(FOUND[at :: len(KINDS)] for at in range(len(KINDS))), strict=True)
    output.write_text(json.dumps([dict(zip(KINDS, row, strict=True)) for row in rows]))
