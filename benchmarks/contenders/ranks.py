"""Start several ranks like a launcher: this process is rank 0, starts the others and takes turns for all of them.

All ranks train the same network, a few million weights, on the same batch.
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
TURNS: list[Turns] = []  # on rank 0 only
NETWORK: list[torch.nn.Module] = []
NUM_UPDATES: int = SETTINGS["num_warmup"] + SETTINGS["num_blocks"] * SETTINGS["block_size"] + 1


def run_on_all_ranks(function: Callable[[], dict[str, Any]]) -> None:
    """Call `function` on all ranks. The return value on rank 0 is the contender's result."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        function()
        return
    TURNS.append(
        Turns(SETTINGS["num_warmup"], SETTINGS["num_blocks"], SETTINGS["block_size"], torch.device("cpu"))
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    environments = [
        {**address, "WORLD_SIZE": str(NUM_RANKS), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(NUM_RANKS)
    ]
    command = [sys.executable, "-m", f"benchmarks.contenders.{SETTINGS['contender']}", sys.argv[1]]
    others = [subprocess.Popen(command, env=os.environ | environment) for environment in environments[1:]]
    os.environ.update(environments[0])
    result = function()
    for other in others:
        if status := other.wait():
            raise RuntimeError(f"a rank ended with exit status {status}")
    TURNS[0].end(**result)


def updates() -> Iterator[int]:
    """Yield the number of each update. A barrier makes all ranks start each block together."""
    num_warmup, block_size = SETTINGS["num_warmup"], SETTINGS["block_size"]
    turns = TURNS[0].over([None]) if TURNS else itertools.repeat(None, NUM_UPDATES)
    for count, _ in enumerate(turns):
        if count >= num_warmup and (count - num_warmup) % block_size == 0:
            dist.barrier()
        yield count


def batch(size: int = BATCH_SIZE) -> Batch:
    """Return the first `size` samples of the batch."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCH_SIZE, NUM_FEATURES, generator=generator)
    return Batch(inputs[:size], torch.arange(BATCH_SIZE)[:size] % NUM_CLASSES)


def model(**_: Any) -> torch.nn.Module:
    """Return the model and keep it in NETWORK; the config's `_target_`."""
    torch.manual_seed(0)
    NETWORK[:] = [MLP(input_shape=[NUM_FEATURES], num_classes=NUM_CLASSES, hidden=HIDDEN, dropout=0.0)]
    return NETWORK[0]


class Source:
    """A data set that repeats the batch."""

    num_samples = BATCH_SIZE * NUM_RANKS

    def stream(self, spec: Any) -> Source:
        self._updates, self._batch = updates(), batch()
        return self

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        next(self._updates)
        yield self._batch

    def batches(self, spec: Any, batch_size: int) -> list[Batch]:
        return [batch(batch_size)]

    def subset(self, indices: Any) -> Source:
        return self

    def close(self) -> None: ...


def data(**_: Any) -> Data:
    """Return the data; the config's `_target_`."""
    return Data(Source(), Source(), (NUM_FEATURES,), NUM_CLASSES)
