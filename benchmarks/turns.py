"""Trainings in processes of their own which take turns, so that a drift of the machine meets all of them alike.

Each training reads its batches from a `Turns`, whatever its loop looks like: when a block of updates is done, it tells
how long the block took and stands still until it is its turn again.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch

from hydrant.profiling import synchronise

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
_LIMIT_SECONDS = 300


def is_on(block_idx: int) -> bool:
    """Whether what a contender switches is on in a block: one of each two, and as often the first of them."""
    return block_idx % 4 in (0, 3)


class Turns:
    """In a contender's process: hands out batches, measures blocks, waits between them.

    A block ends when the batch after it is asked for, so it holds as many whole updates as batches, also where a loop
    fetches batches ahead. One more update follows the last block.
    """

    def __init__(self, num_warmup: int, num_blocks: int, block_size: int, device: torch.device) -> None:
        self._ends = {num_warmup + n * block_size for n in range(num_blocks + 1)}
        self.num_updates = max(self._ends) + 1
        self._reader, self._writer = os.fdopen(int(sys.argv[2])), os.fdopen(int(sys.argv[3]), "w")
        self._began = 0.0
        self._device = device
        self.block_idx = -1  # of the block that runs; -1 before the first one

    def over(self, batches: Sequence[T]) -> Iterator[T]:
        """The batches of the whole training, the given ones again and again."""
        num_batches = len(batches)
        for count in range(self.num_updates):
            if count in self._ends:
                self._wait(count)
            yield batches[count % num_batches]

    def end(self, **result: Any) -> None:
        """The training is over; what came of it, in plain types."""
        self._tell({"result": result})

    def _wait(self, count: int) -> None:
        synchronise(self._device)
        self._tell({"count": count, "seconds": time.perf_counter() - self._began})
        self._reader.readline()
        self.block_idx += 1
        self._began = time.perf_counter()

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message) + "\n")
        self._writer.flush()


class Contender:
    """A training in a process of its own, of `benchmarks/contenders/<name>.py`."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        command = [sys.executable, "-m", f"benchmarks.contenders.{name}", json.dumps(settings)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self._log = name, folder / "output.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, str(theirs[0]), str(ours[1])], pass_fds=(theirs[0], ours[1]), stdout=log, stderr=log,
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, cwd=folder,
            )  # fmt: skip
        os.close(theirs[0])
        os.close(ours[1])
        self._reader, self._writer = os.fdopen(ours[0]), os.fdopen(theirs[1], "w")
        self._hear()  # it is warm

    def block(self) -> float:
        """Let it do a block; the seconds that took."""
        self._writer.write("\n")
        self._writer.flush()
        return self._hear()["seconds"]

    def result(self) -> dict[str, Any]:
        """Let it end; what came of it."""
        self._writer.write("\n")
        self._writer.flush()
        return self._hear()["result"]

    def _hear(self) -> dict[str, Any]:
        is_heard, _, _ = select.select([self._reader], [], [], _LIMIT_SECONDS)
        line = self._reader.readline() if is_heard else ""
        if not line:
            how = "ended early" if is_heard else f"said nothing for {_LIMIT_SECONDS} s"
            raise RuntimeError(f"{self.name} {how}:\n{self._log.read_text()[-2000:]}")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.close()
        self._writer.close()


def race(
    contenders: Mapping[str, Mapping[str, Any]], *, num_blocks: int, block_size: int, num_warmup: int
) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]]]:
    """(seconds of each block, result) of each contender; each round begins with another one of them.

    So none has two turns in a row more often than the others, which would find its data in the caches the second time.
    Their settings are by title, and name the module as `contender`; the result has the digest of the weights.
    """
    common = {"num_blocks": num_blocks, "block_size": block_size, "num_warmup": num_warmup}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        running = dict[str, Contender]()
        for title, own in contenders.items():
            running[title] = Contender(own["contender"], {**own, **common}, Path(folder) / title)
            held.callback(running[title].close)
        seconds: dict[str, list[float]] = {title: [] for title in running}
        for number in range(num_blocks):
            first = number % len(running)
            for title in [*list(running)[first:], *list(running)[:first]]:
                seconds[title].append(running[title].block())
        return seconds, {title: contender.result() for title, contender in running.items()}
