"""Where the results of a grid go: the terminal, the files of its folder, W&B."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hydrant.bench.report import LEGEND, columns, draw, scalars, table, write_csv
from hydrant.build import tracker_factory
from hydrant.config import check, compose, run_folder
from hydrant.config.arguments import written
from hydrant.distributed import World
from hydrant.environment import describe_environment
from hydrant.errors import ConfigError
from hydrant.job import emit, missing_folders, relative, remove_if_empty, say
from hydrant.measuring import Row
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.record import write_json
from hydrant.trackers.wandb import WandbTracker


class Output:
    """The folder of one call of the command, as a context: it is taken back if nothing was written."""

    def __init__(self, options: Namespace, words: Sequence[str], name: str | None) -> None:
        self.folder = options.output or Path(run_folder("outputs", name))
        self._options, self._words = options, words
        world = World.from_launcher()
        self._environment = describe_environment(world.device, world.world_size)
        self._made = missing_folders(self.folder)
        self._exit_status = 1  # until it is known
        self._tracker: WandbTracker | None = None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tracker is not None:
            self._tracker.finish(self._exit_status, {})
        remove_if_empty(self._made)

    def open(self) -> None:
        """Make the folders of every file, and start the tracker: rather refused now than after the last repeat.

        Raises:
            ConfigError: a file cannot be written, the folder holds something, or the tracker refuses its settings.
        """
        for kept, what in (("summary.json", "run"), ("bench.json", "bench")):
            if (self.folder / kept).exists():
                key = "name" if self._options.output is None else "--output"
                raise ConfigError(key, f"{self.folder} holds a {what}; give another folder")
        copies = {"--csv": self._options.csv, "--png": self._options.png}
        for flag, path in {"--output": self.folder / "bench.json", **copies}.items():
            if path is not None:
                with written(flag, path):
                    pass
        if self._options.wandb:
            self._tracker = self._start_tracker()

    def write(self, rows: Sequence[Row], claims: Sequence[str], exit_status: int) -> None:
        """Everything, and the table on the terminal, beside what is claimed."""
        json, picture = self.folder / "bench.json", self.folder / "bench.png"
        with written("--output", json):
            write_json(json, self._record(rows))
        for path in filter(None, (self.folder / "bench.csv", self._options.csv)):
            with written("--csv", path):
                write_csv(rows, path)
        for path in filter(None, (picture, self._options.png)):
            with written("--png", path):
                draw(rows, " ".join(self._words), path)
        if self._options.json:
            emit(json.read_text(encoding="utf-8").rstrip())
        else:
            claimed = "".join(f"claim: {claim}\n" for claim in claims)
            say(
                f"\n{table(rows)}\n{LEGEND}\n{claimed}{relative(self.folder.absolute())} has all that was measured"
            )
        self._exit_status = exit_status
        if self._tracker is not None:
            self._tracker.log({"num_updates": self._options.updates, **scalars(rows)})
            self._tracker.table("bench/cells", *columns(rows))
            self._tracker.image("bench/ranking", picture)
            print(f"W&B: {self._tracker.describe()['path']}", file=sys.stderr)

    def _record(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {
            "environment": self._environment,
            "num_cpus": os.cpu_count(),
            "num_threads": torch.get_num_threads(),
            "overrides": list(self._words),
            "repeats": self._options.repeats,
            "updates": self._options.updates,
            "warmup": self._options.warmup,
            "cells": [row.record() for row in rows],
        }

    def _start_tracker(self) -> WandbTracker:
        own = [word for word in self._words if word.startswith("tracker.")]
        config = check(compose(["tracker=wandb", *own]))
        folder = self.folder.resolve()
        choices = {"overrides": " ".join(self._words), **self._environment}
        identity = RunIdentity(folder, folder.name, "bench", "bench", ("bench",), choices)
        return tracker_factory(config)(identity, 0)
