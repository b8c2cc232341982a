"""Ranks as a launcher starts them: this process is rank 0 and starts the others, which keep step with its turns.

All train the same batch, a few million weights.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.turns import Turns
from hydrant.batch import Batch
from hydrant.data import Data
from hydrant.models import MLP

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
NUM_RANKS: int = SETTINGS["num_ranks"]
NUM_FEATURES, HIDDEN, NUM_CLASSES, BATCH_SIZE = 256, [1024, 1024, 1024], 10, 64
TURNS: list[Turns] = []  # of rank 0
NETWORK: list[torch.nn.Module] = []
NUM_UPDATES: int = SETTINGS["num_warmup"] + SETTINGS["num_blocks"] * SETTINGS["block_size"] + 1


def on_all(do: Callable[[], dict[str, Any]]) -> None:
    """Do this on all ranks; what it gives on rank 0 is the contender's result."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        do()
        return
    TURNS.append(
        Turns(SETTINGS["num_warmup"], SETTINGS["num_blocks"], SETTINGS["block_size"], torch.device("cpu"))
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    places = [
        {**common, "WORLD_SIZE": str(NUM_RANKS), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(NUM_RANKS)
    ]
    command = [sys.executable, "-m", f"benchmarks.contenders.{SETTINGS['contender']}", sys.argv[1]]
    others = [subprocess.Popen(command, env=os.environ | place) for place in places[1:]]
    os.environ.update(places[0])
    result = do()
    for other in others:
        if status := other.wait():
            raise RuntimeError(f"a rank ended with exit status {status}")
    TURNS[0].end(**result)


def updates() -> Iterator[int]:
    """The number of each update; all ranks begin each block at once."""
    num_warmup, block_size = SETTINGS["num_warmup"], SETTINGS["block_size"]
    turns = TURNS[0].over([None]) if TURNS else itertools.repeat(None, NUM_UPDATES)
    for count, _ in enumerate(turns):
        if count >= num_warmup and (count - num_warmup) % block_size == 0:
            dist.barrier()
        yield count


def batch(size: int = BATCH_SIZE) -> Batch:
    """The samples."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCH_SIZE, NUM_FEATURES, generator=generator)
    return Batch(inputs[:size], torch.arange(BATCH_SIZE)[:size] % NUM_CLASSES)


def model(**_: Any) -> torch.nn.Module:
    """What the config calls."""
    torch.manual_seed(0)
    NETWORK[:] = [MLP(input_shape=[NUM_FEATURES], num_classes=NUM_CLASSES, hidden=HIDDEN, dropout=0.0)]
    return NETWORK[0]


class Source:
    """The batch, again and again, as a data set."""

    num_samples = BATCH_SIZE * NUM_RANKS

    def stream(self, spec: Any) -> Source:
        self._updates, self._batch = updates(), batch()
        return self

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        next(self._updates)
        yield self._batch

    def batches(self, spec: Any, batch_size: int) -> list[Batch]:
        return [batch(batch_size)]

    def first(self, num_samples: int) -> Source:
        return self

    def close(self) -> None: ...


def data(**_: Any) -> Data:
    """What the config calls."""
    return Data(Source(), Source(), (NUM_FEATURES,), NUM_CLASSES)
