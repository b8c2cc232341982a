"""Run trainings in separate processes that take turns, so that a drift of the machine affects all of them equally.

Each training loop reads its batches from a `Turns`. At the end of a block of updates, `Turns` reports the block's
duration and waits until the next turn.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.figures import Profile
from hydrant.training.costs import synchronize

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
_LIMIT_SECONDS = 300


def is_on(block_idx: int) -> bool:
    """Return whether the switched feature of a contender is on in a block: on, off, off, on, and so on."""
    return block_idx % 4 in (0, 3)


def child_environment() -> dict[str, str]:
    """Return the variables of a child process that imports this repository and computes on one thread."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def in_turn(trials: Mapping[str, Callable[[], float]], num_blocks: int) -> dict[str, list[float]]:
    """Call each trial once per block, in alternating order. Return the results of each trial by title."""
    results: dict[str, list[float]] = {title: [] for title in trials}
    for number in range(num_blocks):
        for title in list(trials)[:: 1 if number % 2 == 0 else -1]:
            results[title].append(trials[title]())
    return results


class Turns:
    """Runs in a contender's process: yields batches, measures blocks of updates and waits between them.

    A block ends when the loop requests the next batch. So it contains as many whole updates as batches, even if the
    loop prefetches. One more update follows the last block.
    """

    def __init__(self, num_warmup: int, num_blocks: int, block_size: int, device: torch.device) -> None:
        self._ends = {num_warmup + n * block_size for n in range(num_blocks + 1)}
        self.num_updates = max(self._ends) + 1
        self._reader, self._writer = os.fdopen(int(sys.argv[2])), os.fdopen(int(sys.argv[3]), "w")
        self._start = 0.0
        self._device = device
        self.block_idx = -1  # of the current block; -1 before the first one

    def over(self, batches: Sequence[T]) -> Iterator[T]:
        """Yield the batches of the whole training by cycling through `batches`."""
        num_batches = len(batches)
        for count in range(self.num_updates):
            if count in self._ends:
                self._wait(count)
            yield batches[count % num_batches]

    def end(self, **result: Any) -> None:
        """Report the end of the training with its result, in plain types."""
        self._send({"result": result})

    def _wait(self, count: int) -> None:
        synchronize(self._device)
        self._send({"count": count, "seconds": time.perf_counter() - self._start})
        self._reader.readline()
        self.block_idx += 1
        self._start = time.perf_counter()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message) + "\n")
        self._writer.flush()


class Contender:
    """The training of `benchmarks/contenders/<name>.py` in a separate process."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path) -> None:
        from_child, to_child = os.pipe(), os.pipe()
        command = [sys.executable, "-m", f"benchmarks.contenders.{name}", json.dumps(settings)]
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self._log = name, folder / "output.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, str(to_child[0]), str(from_child[1])], pass_fds=(to_child[0], from_child[1]),
                stdout=log, stderr=log, env=child_environment(), cwd=folder,
            )  # fmt: skip
        os.close(to_child[0])
        os.close(from_child[1])
        self._reader, self._writer = os.fdopen(from_child[0]), os.fdopen(to_child[1], "w")
        self._receive()  # the end of the warm-up

    def block(self) -> float:
        """Run one block and return its seconds."""
        self._continue()
        return self._receive()["seconds"]

    def result(self) -> dict[str, Any]:
        """Let the training end and return its result."""
        self._continue()
        return self._receive()["result"]

    def _continue(self) -> None:
        self._writer.write("\n")
        self._writer.flush()

    def _receive(self) -> dict[str, Any]:
        is_ready, _, _ = select.select([self._reader], [], [], _LIMIT_SECONDS)
        line = self._reader.readline() if is_ready else ""
        if not line:
            how = "ended early" if is_ready else f"did not answer within {_LIMIT_SECONDS} s"
            raise RuntimeError(f"{self.name} {how}:\n{self._log.read_text()[-2000:]}")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.close()
        self._writer.close()


def hydrant(*words: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of the Hydrant contender with these overrides."""
    return {"contender": "hydrant_run", "words": words, **settings}


def race(
    contenders: Mapping[str, Mapping[str, Any]], *, num_blocks: int, block_size: int, num_warmup: int
) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]]]:
    """Run contenders in turn. Return the seconds of each block and the result of each contender, by title.

    Each round starts with another contender, so that none has two turns in a row more often than the others: the
    second of such turns would find its data in the CPU caches. `contenders` are settings by title; `contender` in
    them names the module. A result usually contains the digest of the final weights.
    """
    common = {"num_blocks": num_blocks, "block_size": block_size, "num_warmup": num_warmup}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running = dict[str, Contender]()
        for title, settings in contenders.items():
            running[title] = Contender(settings["contender"], {**settings, **common}, Path(folder) / title)
            stack.callback(running[title].close)
        seconds: dict[str, list[float]] = {title: [] for title in running}
        for number in range(num_blocks):
            first = number % len(running)
            for title in [*list(running)[first:], *list(running)[:first]]:
                seconds[title].append(running[title].block())
        return seconds, {title: contender.result() for title, contender in running.items()}


def profile(title: str, settings: Mapping[str, Any]) -> Profile:
    """Return the tables of ten updates of a Hydrant contender."""
    window = ("profiler=torch", "profiler.wait=5", "profiler.warmup=2", "profiler.memory_snapshot=false")
    common = {"num_blocks": 1, "block_size": 20, "num_warmup": 5, "words": (*settings["words"], *window)}
    with tempfile.TemporaryDirectory() as folder:
        contender = Contender(settings["contender"], {**settings, **common}, Path(folder))
        try:
            contender.block()
            contender.result()
        finally:
            contender.close()
        return Profile(title, tables(Path(folder)))


def tables(folder: Path) -> str:
    """Return the tables of the profiled runs in a folder: phases, then kernels."""
    files = sorted(folder.rglob("profile/*.txt"), reverse=True)
    return "\n\n".join(short(file.read_text(encoding="utf-8")) for file in files)


def short(table: str) -> str:
    """Return the first rows of a table."""
    return "\n".join(table.splitlines()[:11])
