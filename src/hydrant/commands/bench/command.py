"""`hydrant bench`: read the command line, then measure."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from hydrant.config.command_line import Flags
from hydrant.files.plain_values import NotNegativeInt, PositiveInt, check_value


def main(arguments: Sequence[str]) -> int:
    """Measure a grid and return the exit status."""
    options, overrides = _parse(arguments)
    from hydrant.commands.bench.run import run_bench  # imports torch

    return run_bench(options, overrides)


def _parse(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    parser = Flags("bench")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--wandb", action="store_true")
    options, overrides = parser.split(arguments)
    for flag, hint in {"repeats": PositiveInt, "updates": PositiveInt, "warmup": NotNegativeInt}.items():
        check_value(f"--{flag}", hint, getattr(options, flag))
    return options, overrides
