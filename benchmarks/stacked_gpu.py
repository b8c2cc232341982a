"""Stacks of many small runs on one GPU (`hydra/launcher=stacked`), compared with one run.

The runs train the default MLP on the digits. Updates are made without logs and files. The memory of a run alone is the
peak over its updates, without the data, which the lanes share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from benchmarks.figures import Figure, Item
from benchmarks.stack_updates import compare, ratio, run_alone, stack_of
from benchmarks.statistics import interval
from hydrant.training.loop import make_update

WORDS = ("eval_every=null", "duration=100000")
LANES = {64: "<= 2", 2048: "<= 10"}
"""Goals by number of lanes: the time of an update, as a multiple of that of a run alone."""
BLOCKS = {2048: (7, 5)}
"""The number of blocks and their updates, where an update takes long. A run alone makes eight times as many."""
MEMORY = "peak memory of {} lanes, as a multiple of the same number of runs alone"
GOALS = {f"an update of {n:,} lanes, as a multiple of that of a run alone": goal for n, goal in LANES.items()}
GOALS |= {MEMORY.format(f"{n:,}"): "<= 1.1" for n in LANES}
REMAINDERS = {
    64: "The host needs 4 ms for an update, the kernels 0.7 ms. A run alone needs 1.4 ms of the host. It launches 28 "
    "kernels; a stack launches about 80 through torch's vmap, because the lanes' learning rates differ and the fused "
    "step takes one.",
    2048: "The memory's bandwidth limits the kernels. 8.4 of 19.5 ms draw the numbers of dropout in plain operations: "
    "without dropout an update takes 7.9 times as long as that of a run alone. The plain operations of the step "
    "read and write all weights and states several times.",
}
"""Why an update takes so long, as measured on an H200."""


def cells(*, quick: bool) -> dict[str, Callable[[], Iterable[Item]]]:
    """Return the parts of the benchmark by title."""
    counts = (4, 8) if quick else tuple(LANES)
    return {f"{n:,} lanes": partial(measure_lanes, n, quick=quick) for n in counts}


def measure_lanes(num_lanes: int, *, quick: bool) -> Iterator[Item]:
    """Measure the updates and the memory of a stack."""
    num_blocks, block_size = (2, 2) if quick else BLOCKS.get(num_lanes, (15, 20))
    title = f"an update of {num_lanes:,} lanes"
    seconds = compare(WORDS, num_lanes, num_blocks=num_blocks, block_size=block_size)
    yield Figure(title, interval([1e3 * value for value in seconds["stack"]]), "ms")
    what = f"{title}, as a multiple of that of a run alone"
    yield ratio(what, seconds, GOALS.get(what), remainder=REMAINDERS.get(num_lanes, ""))
    if torch.cuda.is_available():
        alone = peak_of_run()
        what = MEMORY.format(f"{num_lanes:,}")
        yield Figure(what, peak_of_stack(num_lanes) / (num_lanes * alone), "x", GOALS.get(what))


def peak_of_run() -> int:
    """Return the most bytes that the updates of a run alone take."""
    with run_alone(WORDS) as alone:
        return _peak(lambda: make_update(alone, measure=True), _bytes_of(alone.task))


def peak_of_stack(num_lanes: int) -> int:
    """Return the most bytes that the updates of a stack take."""
    with stack_of(WORDS, num_lanes) as stack:
        return _peak(lambda: stack.update(measure=True), sum(_bytes_of(lane.task) for lane in stack.lanes))


def _peak(update: Callable[[], object], weights: int) -> int:
    """Return the peak over some updates, with the weights and without what else lay in memory before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(5):
        update()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before + weights


def _bytes_of(module: torch.nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))
