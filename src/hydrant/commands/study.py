"""`hydrant study`: which of several settings is best? It is a sweep with its own sweeper."""

import re
from collections.abc import Sequence
from typing import Any, cast

from hydrant.commands import train
from hydrant.config.command_line import Flags

_FLAGS = {
    "--rounds": int,
    "--budget": str,
    "--judge": str,
    "--min-difference": float,
    "--alpha": float,
    "--power": float,
    "--first-seed": int,
    "--seeds": int,
    "--seeds-at-once": int,
}


def main(arguments: Sequence[str]) -> int:
    """Run or continue a study. Return the exit status.

    Raises:
        ConfigError: the command line is wrong.
    """
    parser = Flags("study", metric=str)
    parser.add_argument("--contender", action="append", default=[])
    parser.add_argument("--tune", action="append", default=[])
    for flag, kind in _FLAGS.items():
        parser.add_argument(flag, type=kind)
    options, words = parser.split(arguments)
    values = {"contenders": options.contender, "tune": options.tune}
    values |= {flag[2:].replace("-", "_"): vars(options)[flag[2:].replace("-", "_")] for flag in _FLAGS}
    settings = [
        f"hydra.sweeper.{key}={_written(value)}" for key, value in values.items() if value not in (None, [])
    ]
    metric = [] if options.metric is None else [f"best.metric={_written(options.metric)}"]
    return train.main(["--multirun", "hydra/sweeper=study", *settings, *metric, *words])


def _written(value: Any) -> str:
    """Return a value of an override.

    >>> print(_written("optimizer=sgd notes='a'"), _written(["optimizer.lr", "b=1"]), _written(3))
    'optimizer=sgd notes=\\'a\\'' [optimizer.lr,'b=1'] 3
    """
    if isinstance(value, list):
        return f"[{','.join(_written(item) for item in cast('list[Any]', value))}]"
    if not isinstance(value, str) or re.fullmatch(r"[\w./-]+", value):
        return str(value)
    return "'" + value.replace("'", "\\'") + "'"
