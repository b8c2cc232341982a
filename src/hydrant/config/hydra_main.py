"""The command line of `train`, and the start of Hydra with it, as `hydra.main` does both.

`hydra.main` of Hydra 1.3.8 cannot be used, because its parser cannot be built on Python 3.14. So the flags are listed
here, and a private function of Hydra gets the parsed ones (November 2026). tests/config/test_hydra_main.py compares the
flags with Hydra's own, and fails when Hydra's parser works on Python 3.14.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra import __version__, version
from hydra._internal.utils import _run_hydra  # pyright: ignore[reportPrivateUsage]
from omegaconf import DictConfig

from hydrant.config.command_line import Flags, check_overrides, unknown_flag
from hydrant.config.option_lists import expand_lists


def train_flags() -> Flags:
    """Return the parser of `train`: the overrides, and those flags of Hydra that work with Hydrant."""
    flags = Flags("train")
    flags.set_defaults(help=False, hydra_help=False)  # `hydrant.cli` prints the help
    flags.add_argument("--version", action="version", version=f"Hydra {__version__}")
    flags.add_argument("overrides", nargs="*")
    flags.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    flags.add_argument("--resolve", action="store_true")
    flags.add_argument("--package", "-p")
    flags.add_argument("--run", "-r", action="store_true")
    flags.add_argument("--multirun", "-m", action="store_true")
    flags.add_argument("--shell-completion", "-sc", action="store_true")
    flags.add_argument("--config-path", "-cp")
    flags.add_argument("--config-name", "-cn")
    flags.add_argument("--config-dir", "-cd")
    topics = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    flags.add_argument("--info", "-i", nargs="?", const="all", choices=topics)
    return flags


def parse_flags(arguments: Sequence[str]) -> Namespace:
    """Return the flags of a `train` command, with its checked overrides.

    >>> flags = parse_flags(["seed=1", "--multirun", "tracker=[local,tensorboard]"])
    >>> flags.multirun, flags.overrides
    (True, ['seed=1', 'tracker=local', '+tracker@trackers.tensorboard=tensorboard'])

    Raises:
        ConfigError: A flag is unknown, or an override cannot be parsed.
    """
    parser = train_flags()
    flags, unknown = parser.parse_known_intermixed_args(list(arguments))
    if unknown:
        raise unknown_flag(parser.prog, unknown[0], parser.options(), arguments)
    overrides: list[str] = flags.overrides or []
    check_overrides(overrides)
    flags.overrides = expand_lists(overrides)
    return flags


def run_hydra(flags: Namespace, task: Callable[[DictConfig], Any], conf: Path, config_name: str) -> None:
    """Let Hydra do what the flags say: compose the primary config of a folder and call `task`, or print something."""
    version.setbase("1.3")
    _run_hydra(flags, train_flags(), task, str(conf), config_name)
