"""`hydrant race`: two settings with paired seeds until the better one is known. It is a sweep with its own sweeper."""

from __future__ import annotations

from collections.abc import Sequence

from hydrant.commands import train
from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError

_FLAGS = {
    "--first-seed": int,
    "--max-seeds": int,
    "--max-seconds": float,
    "--negligible": float,
    "--alpha": float,
    "--seeds-at-once": int,
}


def main(arguments: Sequence[str]) -> int:
    """Run or continue a race. Return the exit status.

    Raises:
        ConfigError: the command line is wrong.
    """
    parser = Flags("race")
    for flag, kind in _FLAGS.items():
        parser.add_argument(flag, type=kind)
    options, words = parser.split(arguments)
    if len(words) < 2:
        message = "give two settings: hydrant race optimizer=adamw optimizer=sgd,optimizer.lr=0.1"
        raise ConfigError("", message)
    settings = [f"hydra.sweeper.{name}={_quoted(word)}" for name, word in zip("ab", words, strict=False)]
    given = {key: getattr(options, key) for key in (flag[2:].replace("-", "_") for flag in _FLAGS)}
    limits = [f"hydra.sweeper.{key}={value}" for key, value in given.items() if value is not None]
    return train.main(["--multirun", "hydra/sweeper=race", *settings, *limits, *words[2:]])


def _quoted(text: str) -> str:
    """Return a text as a value of an override.

    >>> print(_quoted("optimizer=sgd,notes='a'"))
    'optimizer=sgd,notes=\\'a\\''
    """
    return "'" + text.replace("'", "\\'") + "'"
