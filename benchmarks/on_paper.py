"""Estimate update times on large clusters, from the cost model and the assumptions below."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.cost_model import (
    Collective,
    Shape,
    Stage,
    ddp_update,
    fsdp_update,
    overlapped,
)
from hydrant.signals import STOP_SIGNALS

WORLDS = (8, 64, 1024, 8192)
NODE = 8  # GPUs
PEAK, MFU = 989e12, 0.45  # FLOP/s of an H200 in bf16, and the share that training uses
NVLINK, NETWORK = 0.8 * 450e9, 0.8 * 50e9  # bytes/s of a GPU in each direction: 80 % of the data sheet
NVLINK_HOP, NETWORK_HOP = 3.4e-6, 9.6e-6  # seconds
HOST_HOP, HOST_WORK = 30e-6, 20e-3  # seconds: a message between hosts; issuing the kernels of an update
MEMORY = 141e9  # bytes
HOST_BYTES = 8 * (1 + len(STOP_SIGNALS))  # that the hosts of all ranks add up in each update
STATE = 16  # bytes per weight: itself, its gradient, two moments
ACTIVATIONS = 34  # bytes per token, layer and unit of width
CAP = 25 * 2**20  # parallel.bucket_cap_mb


class Model(NamedTuple):
    """A transformer, and the number of tokens that each GPU has in an update."""

    title: str
    depth: int
    width: int
    rest: tuple[Shape, ...]  # weights outside of the blocks
    num_tokens: int

    @property
    def block(self) -> list[Shape]:
        """The shapes of a block's weights: norms, attention, and an MLP of four times the width."""
        d = self.width
        norms = [(d,)] * 4
        return [*norms, (3 * d, d), (3 * d,), (d, d), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]

    @property
    def num_weights(self) -> int:
        return num_weights(self.block) * self.depth + num_weights(self.rest)


VIT_REST = ((1, 1, 1024), (1, 197, 1024), (1024, 3, 16, 16), (1024,), (1024,), (1024,), (1000, 1024), (1000,))
MODELS = (
    Model("ViT-L/16", 24, 1024, VIT_REST, 128 * 197),
    Model("1 B", 16, 2048, ((32000, 2048), (2048,), (32000, 2048)), 16384),
    Model("7 B", 32, 4096, ((32000, 4096), (4096,), (32000, 4096)), 8192),
)
OPTIONS = {"`ddp`": 4, "`fsdp`": 4, "`fsdp`, `param_dtype=bfloat16`": 2, "`hsdp`, `param_dtype=bfloat16`": 2}
"""The bytes per weight with which weights are gathered, by option."""


def num_weights(shapes: Iterable[Shape]) -> int:
    return sum(map(math.prod, shapes))


def seconds(collective: Collective, num_nodes: int) -> float:
    """Return the seconds of a collective of ranks that are spread evenly over nodes.

    It is a ring, except that the latency of `all_reduce` is that of a tree. The network adapters of all ranks of a node
    share the work.

    >>> round(1e3 * seconds(Collective("all_gather", 10**9, 8), 1), 2)
    2.45
    >>> round(1e3 * seconds(Collective("all_reduce", 10**9, 64), 8), 2)
    6.26
    """
    kind, num_bytes, num_ranks = collective
    per_node = num_ranks // num_nodes
    bandwidth = NVLINK if num_nodes == 1 else min(NVLINK, per_node * NETWORK)
    transfer = num_bytes * (num_ranks - 1) / num_ranks / bandwidth
    if kind == "all_reduce":
        return 2 * (transfer + (per_node - 1) * NVLINK_HOP + math.log2(num_nodes) * NETWORK_HOP)
    return transfer + (num_ranks - num_nodes) * NVLINK_HOP + (num_nodes - 1) * NETWORK_HOP


def compute_seconds(model: Model) -> float:
    """Return the seconds of computing: six operations per weight and token, a third of them in the forward pass."""
    return 6 * model.num_weights * model.num_tokens / (PEAK * MFU)


def update_seconds(model: Model, option: str, num_ranks: int) -> float:
    """Return the seconds of an update on `num_ranks` GPUs, each with its own tokens, without the hosts' all_reduce."""
    stages = ddp_stages(model, num_ranks) if "ddp" in option else fsdp_stages(model, option, num_ranks)
    return overlapped(stages)


def ddp_stages(model: Model, num_ranks: int) -> list[Stage]:
    """Return the stages of a DDP update: the forward pass, then backward bucket by bucket."""
    compute = compute_seconds(model)
    buckets = ddp_update([*model.rest, *(model.block * model.depth)], num_ranks, CAP)
    whole = sum(bucket.num_bytes for bucket in buckets)
    backward = [
        Stage(0, compute * 2 / 3 * bucket.num_bytes / whole, seconds(bucket, num_ranks // NODE))
        for bucket in buckets
    ]
    return [Stage(0, compute / 3, 0), *backward]


def fsdp_stages(model: Model, option: str, num_ranks: int) -> list[Stage]:
    """Return the stages of an FSDP update: blocks forward, then backward; the rest is gathered first, reduced last."""
    num_nodes = num_ranks // NODE
    num_replicas = num_nodes if "hsdp" in option else 1
    compute = compute_seconds(model) / model.depth
    gathers, reduces = list[float](), list[float]()
    for collective in fsdp_update([model.block] * model.depth, model.rest, num_ranks, num_replicas):
        match collective.kind:
            case "all_gather":
                num_bytes = collective.num_bytes * OPTIONS[option] // 4
                gathers.append(seconds(collective._replace(num_bytes=num_bytes), num_nodes // num_replicas))
            case "reduce_scatter":
                reduces.append(seconds(collective, num_nodes // num_replicas))
            case _:
                reduces[-1] += seconds(collective, num_nodes)
    first, *others = gathers
    forward = [Stage(gather, compute / 3, 0) for gather in others[: model.depth]]
    backward = [
        Stage(gather, compute * 2 / 3, reduce)
        for gather, reduce in zip(others[model.depth :], reduces[:-1], strict=True)
    ]
    return [Stage(first, 0, 0), *forward, *backward, Stage(0, 0, reduces[-1])]


def memory(model: Model, option: str, num_ranks: int) -> float:
    """Return the bytes that a GPU needs: its share of the state, two gathered blocks, and activations."""
    activations = ACTIVATIONS * model.num_tokens * model.depth * model.width
    num_shards = {"d": 1, "f": num_ranks, "h": NODE}[option[1]]
    gathered = 0 if num_shards == 1 else 2 * OPTIONS[option] * num_weights(model.block)
    return STATE * model.num_weights / num_shards + gathered + activations


def efficiencies(share: float) -> list[str]:
    """Return the lines of a table: the share of an update that is computing, by number of GPUs.

    `share` scales the number of tokens per GPU.
    """
    rows = [["a GPU's samples", "`parallel=`", *(f"{n:,}" for n in WORLDS), "memory at 64"]]
    for whole in MODELS:
        model = whole._replace(num_tokens=int(whole.num_tokens * share))
        compute = compute_seconds(model)
        title = f"{model.title}: {model.num_tokens:,} tokens, {1e3 * compute:.0f} ms"
        for option in OPTIONS:
            shares = [f"{compute / update_seconds(model, option, n):.0%}" for n in WORLDS]
            needed = memory(model, option, 64)
            size = f"{needed / 1e9:.0f} GB" + (": too much" if needed > MEMORY else "")
            rows.append([title, option, *shares, size])
            title = ""
    head, *others = rows
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *others)]
