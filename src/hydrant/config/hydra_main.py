"""The command line of `train`: the flags of Hydra that work with Hydrant, and the overrides.

What `train` prints instead of training: --cfg and --info.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import Container, DictConfig, OmegaConf

from hydrant.config.command_line import Flags, check_overrides, expand_lists
from hydrant.config.compose import ENTRY, Composer, Primary, without_hydra
from hydrant.config.groups import conf_dir
from hydrant.errors import ConfigError
from hydrant.terminal.text import align_columns


def train_flags() -> Flags:
    """Return the parser of `train`: the overrides, and those flags of Hydra that work with Hydrant."""
    flags = Flags("train")
    flags.add_argument("--version", action="version", version=f"Hydra {hydra.__version__}")
    modes = flags.add_mutually_exclusive_group()
    modes.add_argument("--run", "-r", action="store_true")
    modes.add_argument("--multirun", "-m", action="store_true")
    modes.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    modes.add_argument("--info", "-i", action="store_true")
    flags.add_argument("--resolve", action="store_true")
    flags.add_argument("--package", "-p")
    flags.add_argument("--config-path", "-cp")
    flags.add_argument("--config-name", "-cn")
    flags.add_argument("--config-dir", "-cd")
    return flags


def parse_flags(arguments: Sequence[str]) -> Namespace:
    """Return the flags of a `train` command, with its checked overrides.

    >>> flags = parse_flags(["seed=1", "--multirun", "tracker=[local,tensorboard]"])
    >>> flags.multirun, flags.overrides
    (True, ['seed=1', 'tracker=local', '+tracker@trackers.tensorboard=tensorboard'])

    Raises:
        ConfigError: A flag is unknown, or an override cannot be parsed.
    """
    flags, words = train_flags().split(arguments)
    check_overrides(words)
    flags.overrides = expand_lists(words)
    return flags


def primary_of(flags: Namespace) -> Primary:
    """Return which config the flags name.

    Raises:
        ConfigError: A folder does not exist.
    """
    paths = {"--config-path": flags.config_path, "--config-dir": flags.config_dir}
    folders = {name: Path(path).absolute() for name, path in paths.items() if path is not None}
    for name, folder in folders.items():
        if not folder.is_dir():
            remedy = "give the folder of your config groups"
            raise ConfigError(name, f"{paths[name]} is not a folder", remedy=remedy)
    folder = folders.get("--config-path", conf_dir())
    return Primary(folder, flags.config_name or ENTRY, folders.get("--config-dir"))


def prints(flags: Namespace) -> bool:
    """Return whether the command only prints something.

    Raises:
        ConfigError: --resolve is given without --cfg.
    """
    if flags.resolve and not flags.cfg:
        raise ConfigError("--resolve", "belongs to --cfg", remedy=": --cfg job --resolve")
    return bool(flags.cfg or flags.info)


def show(flags: Namespace, composer: Composer) -> None:
    """Print what the flags of a `train` command ask for."""
    if flags.cfg is not None:
        print(_config_text(flags, composer.compose(flags.overrides)), end="")
    else:
        for line in _info(composer, flags.overrides):
            print(line)


def _config_text(flags: Namespace, config: DictConfig) -> str:
    """Return the part of a config that --cfg and --package name, as YAML."""
    HydraConfig.instance().cfg = cast("Any", SimpleNamespace(hydra=config.hydra))  # for ${hydra:...}
    package = None if flags.package == "_global_" else flags.package
    shown: Any = config.hydra if flags.cfg == "hydra" else config
    if package is not None:
        shown = OmegaConf.select(config, package)
    elif flags.cfg == "job":
        shown = without_hydra(config)
    if shown is None:
        raise ConfigError("--package", f"no key {package!r} in the config")
    if not isinstance(shown, Container):
        return f"{shown}\n"
    if flags.resolve:
        OmegaConf.resolve(shown)
    if package is None and flags.cfg == "hydra":
        shown = OmegaConf.masked_copy(config, "hydra")
    return f"{'' if package is None else f'# @package {package}'}\n{OmegaConf.to_yaml(shown)}".lstrip("\n")


def _info(composer: Composer, words: list[str]) -> Iterator[str]:
    """Yield the folders that Hydra searches, and the config files that it composes, each with where it places its
    keys and which file includes it."""
    yield "Config search path"
    for source in composer.compose(words).hydra.runtime.config_sources:
        yield f"  {source.provider:<14}{source.schema}://{source.path}"
    defaults = composer.loader.compute_defaults_list(composer.name, words, RunMode.RUN).defaults
    rows = [[d.config_path or "", d.package or "", d.parent or ""] for d in defaults]
    lines = align_columns([["file", "package", "included by"], *rows], {0, 1, 2})
    yield from ("", "Defaults list", *map(str.rstrip, lines))
