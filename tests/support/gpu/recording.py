"""The CUDA calls between two points of a test, counted by kind."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu.library import library


@dataclass(frozen=True)
class Call:
    """A CUDA call.

    Attributes:
        kind: launch; copy; wait; query; allocate and free, pin and unpin; event record; stream wait; host function;
            capture begin and capture end; illegal; module; collective.
        detail: the kernel, the direction of a copy (`H2D pinned async 64`), what is waited for (stream, device, event).
        stream: the handle of the stream.
    """

    kind: str
    detail: str
    stream: int


@dataclass
class Calls:
    """What was called, once the block has ended.

    The level "calls" has CUDA's launches and waits. The level "values" has one launch per operation of aten, and the
    waits inside operations that `gpu.kernels` knows.
    """

    all: list[Call] = field(default_factory=list)

    def of(self, kind: str, words: str = "") -> list[Call]:
        """Return the calls of a kind whose detail contains some words."""
        return [call for call in self.all if call.kind == kind and words in call.detail]

    @property
    def counts(self) -> Counter[str]:
        """How many calls there are of each kind."""
        return Counter(call.kind for call in self.all)

    @property
    def waits(self) -> int:
        """How often the host waits: for a stream, an event or a device, or for a copy to pageable memory."""
        unfinished = [
            call
            for call, following in itertools.pairwise([*self.all, Call("", "", 0)])
            if call.detail.startswith("D2H pageable") and following.kind != "wait"
        ]
        return len(self.of("wait")) + len(unfinished)

    @property
    def launches(self) -> int:
        """How many kernels and graphs are launched."""
        return len(self.of("launch"))

    @property
    def pageable_copies(self) -> int:
        """How many copies between the host and a GPU use memory that is not pinned."""
        return len(self.of("copy", "pageable"))

    @property
    def allocations(self) -> int:
        """How often memory of a GPU or pinned memory is allocated by CUDA, not by torch's caches."""
        return len(self.of("allocate")) + len(self.of("pin"))

    @property
    def illegal(self) -> list[str]:
        """What a GPU would refuse: calls in a capture, and launches of impossible sizes."""
        return [call.detail for call in self.of("illegal")]


@contextlib.contextmanager
def calls() -> Iterator[Calls]:
    """Record the CUDA calls of this process. Blocks do not nest."""
    recorded = Calls()
    library().gpu_stub_record(1)
    try:
        yield recorded
    finally:
        library().gpu_stub_record(0)
        recorded.all += [_call(n) for n in range(library().gpu_stub_num_calls())]


def _call(number: int) -> Call:
    kind, detail, stream = library().gpu_stub_call(number).decode().split("\t")
    return Call(kind, detail, int(stream))
