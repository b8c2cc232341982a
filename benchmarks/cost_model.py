"""What an update on many ranks exchanges, and how long that takes: plain functions of sizes and rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import linear_regression
from typing import NamedTuple

Shape = tuple[int, ...]
FLOAT32 = 4


class Collective(NamedTuple):
    """`num_bytes` are the whole tensor's: what every rank has after `all_gather`, or before `reduce_scatter`."""

    kind: str
    num_bytes: int
    num_ranks: int


class Link(NamedTuple):
    """What a rank sends over."""

    latency: float  # seconds a hop
    bandwidth: float  # bytes a second


class Stage(NamedTuple):
    """Seconds of a part of an update: what it needs first, what it computes, and what follows from it."""

    gather: float
    compute: float
    reduce: float


def ring_seconds(collective: Collective, link: Link) -> float:
    """By a ring: n - 1 hops with 1/n of the bytes each, twice that for a sum that all get.

    >>> ring_seconds(Collective("all_reduce", 100, 4), Link(1.0, 10.0))
    21.0
    >>> ring_seconds(Collective("all_gather", 100, 4), Link(1.0, 10.0))
    10.5
    """
    kind, num_bytes, num_ranks = collective
    num_hops = (num_ranks - 1) * (2 if kind == "all_reduce" else 1)
    return num_hops * (link.latency + num_bytes / num_ranks / link.bandwidth)


def fitted_link(sizes: Sequence[int], seconds: Sequence[float], num_ranks: int) -> Link:
    """The link by which `all_reduce` of these sizes takes so long, by least squares.

    >>> fitted_link([0, 50, 100], [6.0, 13.5, 21.0], 4)
    Link(latency=1.0, bandwidth=10.0)
    """
    a_byte, at_once = linear_regression(sizes, seconds)
    num_hops = 2 * (num_ranks - 1)
    return Link(at_once / num_hops, num_hops / num_ranks / a_byte)


def buckets(sizes: Iterable[int], cap: int) -> list[int]:
    """The bytes of DDP's buckets: gradients in the order in which backward makes them; one is full at its cap.

    >>> buckets([3, 4, 5, 1], cap=6)
    [7, 6]
    >>> buckets([3, 4, 5], cap=6)
    [7, 5]
    """
    filled, current = list[int](), 0
    for size in sizes:
        current += size
        if current >= cap:
            filled.append(current)
            current = 0
    return [*filled, current] if current else filled


def padded_bytes(shapes: Iterable[Shape], num_ranks: int) -> int:
    """Of a sharded unit in one piece: of each tensor all ranks have as many rows as the first, if only empty ones.

    >>> padded_bytes([(6, 10), (3,)], 1), padded_bytes([(6, 10), (3,)], 4)
    (252, 336)
    """
    return FLOAT32 * sum(
        num_ranks * math.ceil(shape[0] / num_ranks) * math.prod(shape[1:]) for shape in shapes
    )


def ddp_update(shapes: Sequence[Shape], num_ranks: int, cap: int) -> list[Collective]:
    """The exchanges of one update, in their order; the shapes are in the model's, which backward goes against.

    >>> ddp_update([(2, 3), (4,)], 8, cap=100)
    [Collective(kind='all_reduce', num_bytes=40, num_ranks=8)]
    """
    sizes = [FLOAT32 * math.prod(shape) for shape in reversed(shapes)]
    return [Collective("all_reduce", size, num_ranks) for size in buckets(sizes, cap)]


def fsdp_update(
    blocks: Sequence[Sequence[Shape]], rest: Sequence[Shape], num_ranks: int, num_replicas: int = 1
) -> list[Collective]:
    """The exchanges of one update: blocks are gathered twice, what is left once; then all gradients are reduced.

    >>> [(c.kind, c.num_bytes) for c in fsdp_update([[(4,)]], [(2,)], 2)]
    [('all_gather', 8), ('all_gather', 16), ('all_gather', 16), ('reduce_scatter', 16), ('reduce_scatter', 8)]
    """
    num_shards = num_ranks // num_replicas
    whole = [padded_bytes(unit, num_shards) for unit in (*blocks, rest)]
    gathered = [whole[-1], *whole[:-1], *reversed(whole[:-1])]
    found = [Collective("all_gather", size, num_shards) for size in gathered]
    for size in [*reversed(whole[:-1]), whole[-1]]:
        found.append(Collective("reduce_scatter", size, num_shards))
        if num_replicas > 1:
            found.append(Collective("all_reduce", size // num_shards, num_replicas))
    return found


def overlapped(stages: Sequence[Stage]) -> float:
    """Seconds of an update whose network and device work at once, each at one thing after the other.

    What a stage needs is gathered while the stage before it computes.

    >>> overlapped([Stage(1, 4, 0), Stage(1, 4, 2)]), overlapped([Stage(5, 4, 0), Stage(5, 4, 2)])
    (11, 16)
    """
    network = ready = stages[0].gather
    device = 0.0
    for stage, after in zip(stages, [*stages[1:], Stage(0, 0, 0)], strict=True):
        start = max(device, ready)
        if after.gather:
            network = max(network, start) + after.gather
        ready = network if after.gather else start
        device = start + stage.compute
        if stage.reduce:
            network = max(network, device) + stage.reduce
    return max(device, network)


def in_turn(compute: float, ranks_per_core: int, exchanges: Iterable[float]) -> float:
    """Seconds of an update where the cores that would compute are those that exchange: nothing to overlap with.

    >>> in_turn(10.0, 2, [1.0, 2.0])
    23.0
    """
    return ranks_per_core * compute + sum(exchanges)
