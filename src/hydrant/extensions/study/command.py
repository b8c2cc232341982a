"""`hydrant study`: which of several settings is best? It is a sweep with its own sweeper."""

import re
from collections.abc import Sequence
from typing import Any, cast

from hydrant.commands import train
from hydrant.config.command_line import Flags
from hydrant.config.groups import content_of, option_path

_NO_FLAGS = ("_target_", "params", "contenders", "tune")
"""The keys of a study that are no flag with one value."""


def main(arguments: Sequence[str]) -> int:
    """Run or continue a study. Return the exit status.

    Raises:
        ConfigError: the command line is wrong.
    """
    own_keys = content_of(option_path("hydra/sweeper", "study")).keys() - {*_NO_FLAGS}
    parser = Flags("study", metric=str, **dict.fromkeys(sorted(own_keys), str))
    parser.add_argument("--contender", action="append", dest="contenders")
    parser.add_argument("--tune", action="append")
    options, words = parser.split(arguments)
    values = {key: value for key, value in vars(options).items() if value is not None and key != "json"}
    keys = {"metric": "best.metric"}
    settings = [f"{keys.get(key, f'hydra.sweeper.{key}')}={_written(value)}" for key, value in values.items()]
    return train.main(["--multirun", "hydra/sweeper=study", *settings, *words])


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
