"""A cost model of distributed updates: which collectives an update issues, and how long they take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import linear_regression
from typing import NamedTuple

Shape = tuple[int, ...]
FLOAT32 = 4


class Collective(NamedTuple):
    """A collective. `num_bytes` is the size of the whole tensor: after `all_gather`, before `reduce_scatter`."""

    kind: str
    num_bytes: int
    num_ranks: int


class Link(NamedTuple):
    """The connection of a rank."""

    latency: float  # seconds per hop
    bandwidth: float  # bytes per second


class Stage(NamedTuple):
    """Seconds of a part of an update: gathering its weights, computing, and reducing its gradients."""

    gather: float
    compute: float
    reduce: float


def ring_seconds(collective: Collective, link: Link) -> float:
    """Return the seconds of a ring: n - 1 hops with 1/n of the bytes each, and twice that for `all_reduce`.

    >>> ring_seconds(Collective("all_reduce", 100, 4), Link(1.0, 10.0))
    21.0
    >>> ring_seconds(Collective("all_gather", 100, 4), Link(1.0, 10.0))
    10.5
    """
    kind, num_bytes, num_ranks = collective
    num_hops = (num_ranks - 1) * (2 if kind == "all_reduce" else 1)
    return num_hops * (link.latency + num_bytes / num_ranks / link.bandwidth)


def fitted_link(sizes: Sequence[int], seconds: Sequence[float], num_ranks: int) -> Link:
    """Return the link that fits measured `all_reduce` times, by least squares.

    >>> fitted_link([0, 50, 100], [6.0, 13.5, 21.0], 4)
    Link(latency=1.0, bandwidth=10.0)
    """
    per_byte, constant = linear_regression(sizes, seconds)
    num_hops = 2 * (num_ranks - 1)
    return Link(constant / num_hops, num_hops / num_ranks / per_byte)


def buckets(sizes: Iterable[int], cap: int) -> list[int]:
    """Return the bytes of DDP's buckets, for gradients in backward's order. A bucket is closed when it reaches `cap`.

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
    """Return the bytes of a gathered FSDP unit. torch pads each tensor: every rank has as many rows as rank 0.

    >>> padded_bytes([(6, 10), (3,)], 1), padded_bytes([(6, 10), (3,)], 4)
    (252, 336)
    """
    return FLOAT32 * sum(
        num_ranks * math.ceil(shape[0] / num_ranks) * math.prod(shape[1:]) for shape in shapes
    )


def ddp_update(shapes: Sequence[Shape], num_ranks: int, cap: int) -> list[Collective]:
    """Return the collectives of one DDP update, in order. `shapes` are in the model's order; backward reverses it.

    >>> ddp_update([(2, 3), (4,)], 8, cap=100)
    [Collective(kind='all_reduce', num_bytes=40, num_ranks=8)]
    """
    sizes = [FLOAT32 * math.prod(shape) for shape in reversed(shapes)]
    return [Collective("all_reduce", size, num_ranks) for size in buckets(sizes, cap)]


def fsdp_update(
    blocks: Sequence[Sequence[Shape]], rest: Sequence[Shape], num_ranks: int, num_replicas: int = 1
) -> list[Collective]:
    """Return the collectives of one FSDP update.

    Blocks are gathered twice, the rest once; then all gradients are reduced.

    >>> [(c.kind, c.num_bytes) for c in fsdp_update([[(4,)]], [(2,)], 2)]
    [('all_gather', 8), ('all_gather', 16), ('all_gather', 16), ('reduce_scatter', 16), ('reduce_scatter', 8)]
    """
    num_shards = num_ranks // num_replicas
    whole = [padded_bytes(unit, num_shards) for unit in (*blocks, rest)]
    gathered = [whole[-1], *whole[:-1], *reversed(whole[:-1])]
    collectives = [Collective("all_gather", size, num_shards) for size in gathered]
    for size in [*reversed(whole[:-1]), whole[-1]]:
        collectives.append(Collective("reduce_scatter", size, num_shards))
        if num_replicas > 1:
            collectives.append(Collective("all_reduce", size // num_shards, num_replicas))
    return collectives


def overlapped(stages: Sequence[Stage]) -> float:
    """Return the seconds of an update in which network and device work in parallel, each on one task at a time.

    The weights of a stage are gathered while the previous stage computes.

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
    """Return the seconds of an update without overlap, because the same cores compute and communicate.

    >>> in_turn(10.0, 2, [1.0, 2.0])
    23.0
    """
    return ranks_per_core * compute + sum(exchanges)
