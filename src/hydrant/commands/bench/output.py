"""Write the results of `hydrant bench`: to the terminal, to files in its folder, to W&B."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hydrant.commands.bench.render import LEGEND, columns, draw, scalars, table, write_csv
from hydrant.commands.bench.results import CellResult
from hydrant.config.check import check
from hydrant.config.command_line import writing_to
from hydrant.config.compose import compose
from hydrant.config.instantiate import instantiate
from hydrant.config.resolvers import run_folder
from hydrant.errors import ConfigError
from hydrant.files.atomic_write import write_json
from hydrant.files.redaction import redacted
from hydrant.runs.environment import describe_environment
from hydrant.runs.folder import SUMMARY, missing_folders, remove_if_empty
from hydrant.terminal.answer import tell
from hydrant.terminal.console import notice, relative
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.wandb import WandbTracker
from hydrant.training.distributed.world import World


class BenchOutput:
    """The output folder, files and W&B run of one `hydrant bench`. Empty folders are removed at the end."""

    def __init__(self, options: Namespace, overrides: Sequence[str], name: str | None) -> None:
        self.folder = options.output or Path(run_folder("outputs", name))
        self._options, self._overrides = options, overrides
        self._words = " ".join(redacted(list(overrides)))  # as shown in pictures and in W&B
        world = World.from_launcher()
        self._environment = describe_environment(world.device, world.world_size)
        self._new_folders = missing_folders(self.folder)
        self._exit_status = 1  # replaced by `write`
        self._tracker: WandbTracker | None = None

    def __enter__(self) -> BenchOutput:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tracker is not None:
            self._tracker.finish(self._exit_status, {})
        remove_if_empty(self._new_folders)

    def open(self) -> None:
        """Create all folders and start the tracker, so that an error comes before the first measurement.

        Raises:
            ConfigError: a file cannot be written, the folder is in use, or the tracker's settings are wrong.
        """
        for file, content in ((SUMMARY, "a run"), ("bench.json", "results of bench")):
            if (self.folder / file).exists():
                key = "name" if self._options.output is None else "--output"
                raise ConfigError(key, f"{self.folder} already contains {content}; choose another folder")
        copies = {"--csv": self._options.csv, "--png": self._options.png}
        for flag, path in {"--output": self.folder / "bench.json", **copies}.items():
            if path is not None:
                with writing_to(flag, path):
                    pass
        if self._options.wandb:
            self._tracker = self._start_tracker()

    def write(self, results: Sequence[CellResult], claims: Sequence[str], exit_status: int) -> None:
        """Write all files, log to W&B, and print the table (or the JSON) with the claims of the experiment."""
        file, picture = self.folder / "bench.json", self.folder / "bench.png"
        record = self._record(results)
        with writing_to("--output", file):
            write_json(file, record)
        for path in filter(None, (self.folder / "bench.csv", self._options.csv)):
            with writing_to("--csv", path):
                write_csv(results, path)
        for path in filter(None, (picture, self._options.png)):
            with writing_to("--png", path):
                draw(results, self._words, path)
        folder = relative(self.folder.absolute())
        claim_lines = "".join(f"claim: {claim}\n" for claim in claims)
        text = f"\n{table(results)}\n{LEGEND}\n{claim_lines}all measurements are in {folder}"
        tell(text, {"folder": folder, **record})
        self._exit_status = exit_status
        if self._tracker is not None:
            self._tracker.log({"num_updates": self._options.updates, **scalars(results)})
            self._tracker.table("bench/cells", *columns(results))
            self._tracker.image("bench/ranking", picture)
            notice(f"W&B: {self._tracker.describe()['path']}")

    def _record(self, results: Sequence[CellResult]) -> dict[str, Any]:
        return {
            "environment": self._environment,
            "num_cpus": os.cpu_count(),
            "num_threads": torch.get_num_threads(),
            "overrides": list(self._overrides),
            "repeats": self._options.repeats,
            "updates": self._options.updates,
            "warmup": self._options.warmup,
            "cells": [result.record() for result in results],
        }

    def _start_tracker(self) -> WandbTracker:
        settings = [override for override in self._overrides if override.startswith("tracker.")]
        config = check(compose(["tracker=wandb", *settings]))
        folder = self.folder.resolve()
        choices = {"overrides": self._words, **self._environment}
        identity = RunIdentity(folder, folder.name, "bench", "bench", ("bench",), choices)
        return instantiate(config, "tracker")(identity, 0)
