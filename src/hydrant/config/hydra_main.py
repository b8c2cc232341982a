"""The command line of `train`: the flags of Hydra that work with Hydrant, and the overrides."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import hydra

from hydrant.config.command_line import Flags, check_overrides, unknown_flag
from hydrant.config.compose import ENTRY, Primary
from hydrant.config.groups import conf_dir
from hydrant.config.option_lists import expand_lists
from hydrant.errors import ConfigError


def train_flags() -> Flags:
    """Return the parser of `train`: the overrides, and those flags of Hydra that work with Hydrant."""
    flags = Flags("train")
    flags.set_defaults(help=False, hydra_help=False)  # `hydrant.cli` prints the help
    flags.add_argument("--version", action="version", version=f"Hydra {hydra.__version__}")
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


def primary_of(flags: Namespace) -> Primary:
    """Return which config the flags name.

    Raises:
        ConfigError: A folder does not exist.
    """
    folders = dict[str, Path]()
    for flag in ("config_path", "config_dir"):
        if (value := getattr(flags, flag)) is not None:
            folders[flag] = Path(value).absolute()
            if not folders[flag].is_dir():
                name = f"--{flag.replace('_', '-')}"
                raise ConfigError(
                    name, f"{value} is not a folder", remedy="give the folder of your config groups"
                )
    return Primary(
        folders.get("config_path", conf_dir()), flags.config_name or ENTRY, folders.get("config_dir")
    )


def prints(flags: Namespace) -> bool:
    """Return whether the command only prints something.

    Raises:
        ConfigError: The flags exclude each other.
    """
    chosen = [f"--{name.replace('_', '-')}" for name in ("run", "multirun", "cfg", "info", "shell_completion")
              if getattr(flags, name)]  # fmt: skip
    if len(chosen) > 1:
        raise ConfigError("", f"{' and '.join(chosen)} exclude each other", remedy="give one")
    if flags.resolve and not flags.cfg:
        raise ConfigError("--resolve", "belongs to --cfg: --cfg job --resolve")
    return not {"--run", "--multirun"}.issuperset(chosen)
