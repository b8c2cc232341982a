"""`hydrant bench`: read the command line, then measure."""

from collections.abc import Sequence
from pathlib import Path

from hydrant.config.command_line import Flags
from hydrant.files.plain_values import NotNegativeInt, PositiveInt, check_value


def main(arguments: Sequence[str]) -> int:
    """Measure a grid and return the exit status."""
    flags = Flags("bench", repeats=3, updates=10, warmup=3, output=Path)
    options, overrides = flags.split(arguments)
    for flag, hint in {"repeats": PositiveInt, "updates": PositiveInt, "warmup": NotNegativeInt}.items():
        check_value(f"--{flag}", hint, getattr(options, flag))
    from hydrant.commands.bench.run import run_bench  # imports torch

    return run_bench(options, overrides)
