"""The workers of a LoaderSource read ahead, jump, report errors in one sentence, and end."""

import gc
import multiprocessing
import os
import signal
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from processes import printed
from sources import as_input
from torch import Tensor

from hydrant.clock import Steps
from hydrant.data import LoaderSource, StreamSpec
from hydrant.errors import DataError

SPEC = StreamSpec(0, Steps.constant(8), 4, 0, 1, torch.device("cpu"))


@dataclass
class Samples:
    """100 samples that record the reading process. One may be damaged, or its file missing."""

    damaged: int = -1
    missing: int = -1
    read: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == self.damaged:
            raise DataError(f"image {index} is damaged")
        if index == self.missing:
            raise FileNotFoundError(2, "No such file", f"{index}.jpg")
        self.read.append(index)
        return os.getpid(), index


def source(samples: Samples, num_workers: int) -> LoaderSource:
    return LoaderSource(samples, as_input, as_input, mean=(0.0,), std=(1.0,), num_workers=num_workers)


def workers_of(stream_batches: list[Tensor]) -> set[int]:
    return {int(pid) for inputs in stream_batches for pid in inputs.flatten()}


@pytest.fixture(autouse=True)
def _no_workers_of_other_tests(quick_death: None) -> None:
    """End the workers of iterators that a test before this one has left to the garbage collector."""
    gc.collect()


def test_workers_persist_over_updates_and_jumps_until_close() -> None:
    stream = source(Samples(), num_workers=2).stream(SPEC)
    seen = [batch.inputs for n in (0, 1, 2, 40, 41, 3) for batch in stream.micro_batches(n)]
    children = multiprocessing.active_children()
    assert len(children) == 2
    assert workers_of(seen) == workers_of([batch.inputs for batch in stream.micro_batches(4)])
    stream.close()
    stream.close()
    assert not any(child.is_alive() for child in children)
    assert len(list(stream.micro_batches(4))) == 2  # another read starts new workers
    stream.close()
    assert multiprocessing.active_children() == []


def test_a_jump_skips_samples_and_a_repeat_reads_nothing_again() -> None:
    samples = Samples()
    stream = source(samples, num_workers=0).stream(SPEC)
    first = [batch.targets for batch in stream.micro_batches(1000)]
    again = [batch.targets for batch in stream.micro_batches(1000)]
    assert samples.read == torch.cat(first).tolist() == torch.cat(again).tolist()


class Pixels:
    """Images (3, 2, 5) of bytes, whose values are their index."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3, 2, 5), index, dtype=torch.uint8), index


def test_batches_of_normalized_bytes_are_not_overwritten() -> None:
    mean, std = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.2, 0.3, 0.4])
    images = LoaderSource(Pixels(), torch.clone, torch.clone, mean.tolist(), std.tolist(), num_workers=0)
    stream = images.stream(SPEC)
    kept = [(batch.inputs[:, 1:], batch.targets) for n in range(6) for batch in stream.micro_batches(n)]
    for inputs, targets in kept:
        pixels = targets.float().view(-1, 1, 1, 1).expand(-1, 3, 2, 5)
        normalized = (pixels - 255 * mean.view(-1, 1, 1)) * (1 / (255 * std.view(-1, 1, 1)))
        assert torch.equal(inputs, normalized[:, 1:])


@pytest.mark.parametrize(
    ("num_workers", "samples", "message"),
    [
        (0, Samples(damaged=7), "image 7 is damaged"),
        (2, Samples(missing=7), "sample 7 of the data set cannot be read: [Errno 2] No such file: '7.jpg'"),
    ],
)
def test_an_unreadable_sample_is_reported_in_one_sentence(
    samples: Samples, message: str, num_workers: int
) -> None:
    stream = source(samples, num_workers).stream(SPEC)
    order = torch.cat(
        [b.targets for n in range(13) for b in source(Samples(), 0).stream(SPEC).micro_batches(n)]
    )
    bad_update = int((order == 7).nonzero()[0]) // 8
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            list(stream.micro_batches(bad_update))
        assert str(caught.value) == message
    assert len(list(stream.micro_batches(bad_update + 1))) == 2  # other updates can still be read
    stream.close()
    with pytest.raises(DataError):
        list(source(samples, num_workers).batches(SPEC, 10))
    assert multiprocessing.active_children() == []


def test_an_unfinished_evaluation_leaves_no_workers() -> None:
    batches = source(Samples(), num_workers=2).batches(SPEC, 10)
    assert len(next(iter(batches)).inputs) == 10
    del batches
    assert multiprocessing.active_children() == []


def test_evaluation_workers_are_kept_over_passes() -> None:
    batches = source(Samples(), num_workers=2).batches(SPEC, 10)
    passes = [list(batches) for _ in range(3)]
    workers = workers_of([batch.inputs for batches in passes for batch in batches])
    assert len(workers) == 2
    for batches_of_pass in passes:
        targets = torch.cat([batch.targets for batch in batches_of_pass])
        assert targets.tolist() == list(range(100))
    os.kill(min(workers), signal.SIGKILL)
    with pytest.raises(DataError, match=rf"^a data worker \(pid {min(workers)}\) died between two batches: "):
        list(batches)
    assert len(list(batches)) == 10  # by new workers
    batches.close()
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_an_unclosed_stream_ends_with_the_program(tmp_path: Path) -> None:
    script = tmp_path / "unclosed.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        from hydrant.clock import Steps
        from hydrant.data import LoaderSource, StreamSpec

        samples = [(n, n) for n in range(20)]
        as_input = lambda n: torch.full((1, 1, 1), float(n))
        stream = LoaderSource(samples, as_input, as_input, (0.0,), (1.0,), num_workers=2).stream(
            StreamSpec(0, Steps.constant(4), 4, 0, 1, torch.device("cpu"))
        )
        print(len(list(stream.micro_batches(0))))
        """)
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    assert (
        printed(sys.executable, "-W", "error", str(script), env={**os.environ, "PYTHONPATH": paths}) == "1\n"
    )
