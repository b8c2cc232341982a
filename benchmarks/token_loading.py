"""Reading tokens from memory-mapped files, compared with hand-written loops.

A file has 2**26 tokens of 16 bits. `windows`: batches of sequences in random order, each token once an epoch. The
loop maps the file by NumPy, permutes the numbers of the sequences, and stacks a slice for each row, once for the
inputs and once for the targets. `contiguous`: batches in the order of the file, as the loops of speedruns read them:
a slice for the inputs and one for the targets. Both give int64 tensors; Hydrant also checks that every id is in the
vocabulary. Both read different parts of the file at a time, so that neither leaves the other its tokens in the cache.
All readers run in one process on one thread and take turns by blocks; the time is that of the processor. Resuming: the
seconds from opening ten billion tokens to the batch of 64 x 1,024 of an update in the middle of the second epoch, whose
pages were not read before.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import in_turn
from hydrant.clock import Steps
from hydrant.data import StreamSpec
from hydrant.extensions.language import TokenData, tokens

VOCAB_SIZE = 50257
SHAPES = {"64 x 1,024": (64, 1024), "32 x 256": (32, 256)}
MANY = 10**10  # tokens


def measure(*, quick: bool) -> list[Figure]:
    """Compare both orders with loops, and measure the first batch after a resume."""
    torch.set_num_threads(1)
    num_tokens, num_blocks = (2**20, 2) if quick else (2**26, 60)
    figures = list[Figure]()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.bin")
        np.random.default_rng(0).integers(0, VOCAB_SIZE, num_tokens, dtype=np.uint16).tofile(file)
        for title, (batch_size, length) in SHAPES.items():
            for sampling, loop in {"windows": _windows, "contiguous": _contiguous}.items():
                data = _data(folder, length, sampling)
                readers = {
                    "Hydrant": _batches(data, batch_size, start=num_tokens // (2 * batch_size * length)),
                    "loop": loop(np.memmap(file, np.uint16, "r"), batch_size, length),
                }
                num_batches = 2 if quick else 2**22 // (batch_size * length)
                figures += _compare(
                    f"{sampling}, {title}", readers, num_batches, num_blocks, batch_size * length
                )
        figures.append(_resumed(Path(folder), quick=quick))
    return figures


def _compare(
    what: str,
    readers: dict[str, Iterator[tuple[Tensor, Tensor]]],
    num_batches: int,
    num_blocks: int,
    size: int,
) -> list[Figure]:
    def block(reader: Iterator[tuple[Tensor, Tensor]]) -> float:
        start = time.process_time()
        for _ in range(num_batches):
            next(reader)
        return num_batches * size / (time.process_time() - start) / 1e6

    for reader in readers.values():
        block(reader)  # warm-up: pages are in memory afterwards
    rates = in_turn(
        {title: lambda reader=reader: block(reader) for title, reader in readers.items()}, num_blocks
    )
    ratio = paired(rates["Hydrant"], rates["loop"], lambda hydrant, other: hydrant / other)
    return [
        *(
            Figure(f"{title}: {what}", interval(values), "million tokens/s")
            for title, values in rates.items()
        ),
        Figure(f"Hydrant to loop: {what}", ratio, "x", ">= 0.98"),
    ]


def _resumed(folder: Path, *, quick: bool) -> Figure:
    """Measure in a file without content on disk, which takes no space. Each trial reads another update."""
    num_tokens, (batch_size, length) = MANY // (1000 if quick else 1), (64, 1024)
    with (folder / "many.bin").open("wb") as file:
        file.truncate(2 * num_tokens)
    seconds = list[float]()
    for number in range(1 if quick else 5):
        start = time.perf_counter()
        data = _data(str(folder), length, "windows", "many.bin")
        next(_batches(data, batch_size, 3 * data.train.num_samples // (2 * batch_size) + 100 * number))
        seconds.append(time.perf_counter() - start)
    what = f"the first batch of a resumed run, of {num_tokens:,} tokens"
    return Figure(what, interval(seconds), "s", "<= 1")


def _data(folder: str, length: int, sampling: str, train: str = "train.bin") -> TokenData:
    return tokens(
        root=folder, train=train, val="train.bin", test=None, extra_val={}, dtype="uint16", sequence_length=length,
        sampling=sampling, vocab_size=VOCAB_SIZE, separator=None, separator_position=None, fingerprint=None,
        input_shape=None, num_classes=None,
    )  # fmt: skip


def _batches(data: TokenData, batch_size: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    spec = StreamSpec(0, Steps.constant(batch_size), batch_size, 0, 1, torch.device("cpu"))
    stream = data.train.stream(spec)
    for num_updates in itertools.count(start):
        yield from stream.micro_batches(num_updates)


def _windows(mapped: np.ndarray, batch_size: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    while True:
        starts = (torch.randperm((len(mapped) - 1) // length, generator=generator) * length).tolist()
        for first in range(0, len(starts) - batch_size + 1, batch_size):
            chosen = starts[first : first + batch_size]
            inputs = [torch.from_numpy(mapped[start : start + length].astype(np.int64)) for start in chosen]
            targets = [
                torch.from_numpy(mapped[start + 1 : start + 1 + length].astype(np.int64)) for start in chosen
            ]
            yield torch.stack(inputs), torch.stack(targets)


def _contiguous(mapped: np.ndarray, batch_size: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    size = batch_size * length
    for start in itertools.cycle(range(0, len(mapped) - size, size)):
        part = mapped[start : start + size + 1]
        inputs, targets = (torch.from_numpy(ids.astype(np.int64)) for ids in (part[:-1], part[1:]))
        yield inputs.view(batch_size, length), targets.view(batch_size, length)
