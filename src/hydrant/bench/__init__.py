"""`bench`: a grid of precisions and compile settings, each measured in fresh processes and beside its eager run."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from hydrant.config.arguments import Flags
from hydrant.errors import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Measure a grid; the exit status."""
    options, words = _read(arguments)
    from hydrant.bench.session import run  # brings in torch

    return run(options, words)


def _read(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    parser = Flags("bench")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--wandb", action="store_true")
    options, words = parser.split(arguments)
    for flag, least in {"repeats": 1, "updates": 1, "warmup": 0}.items():
        given = getattr(options, flag)
        if given < least:
            raise ConfigError(f"--{flag}", f"needs a number from {least} on, not {given}")
    return options, words
