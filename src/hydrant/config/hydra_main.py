"""The command line of `train`: the flags of Hydra that work with Hydrant, and the overrides.

What `train` prints instead of training: --cfg, --info and the completion for a shell.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hydra
from hydra.core.default_element import GroupDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.completion_plugin import CompletionPlugin
from hydra.types import RunMode
from omegaconf import Container, DictConfig, OmegaConf

from hydrant.config.command_line import Flags, check_overrides, expand_lists, unknown_flag
from hydrant.config.compose import ENTRY, Composer, Primary, without_hydra
from hydrant.config.groups import conf_dir
from hydrant.errors import ConfigError

_TOPICS = ("config", "defaults", "defaults-tree", "plugins", "searchpath")
"""What `--info` prints about a config."""


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
    flags.add_argument("--info", "-i", nargs="?", const="all", choices=["all", *_TOPICS])
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
    paths = dict[str, Path]()
    for flag in ("config_path", "config_dir"):
        if (value := getattr(flags, flag)) is not None:
            paths[flag] = Path(value).absolute()
            if not paths[flag].is_dir():
                name, remedy = f"--{flag.replace('_', '-')}", "give the folder of your config groups"
                raise ConfigError(name, f"{value} is not a folder", remedy=remedy)
    return Primary(paths.get("config_path", conf_dir()), flags.config_name or ENTRY, paths.get("config_dir"))


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
        raise ConfigError("--resolve", "belongs to --cfg", remedy=": --cfg job --resolve")
    return not {"--run", "--multirun"}.issuperset(chosen)


_COMPLETION = ("install", "uninstall", "query")


def show(flags: Namespace, composer: Composer) -> None:
    """Print what the flags of a `train` command ask for."""
    if flags.shell_completion:
        _complete(flags.overrides, composer)
    elif flags.cfg is not None:
        print(_config_text(flags, composer.compose(flags.overrides)), end="")
    else:
        for line in _info(flags.info, composer, flags.overrides):
            print(line)


def _complete(words: list[str], composer: Composer) -> None:
    """Print the completion of a command line, or how a shell installs it: `-sc install=fish`."""
    kinds = cast("list[type[CompletionPlugin]]", Plugins.instance().discover(CompletionPlugin))
    shells = {kind.provides(): kind for kind in kinds}
    verb, _, shell = words[0].partition("=") if len(words) == 1 else ("", "", "")
    if verb not in _COMPLETION or shell not in shells:
        needed = " or ".join(f"{name}=<shell>" for name in _COMPLETION)
        raise ConfigError("", f"-sc needs {needed}; shells: {', '.join(sorted(shells))}")
    plugin = shells[shell](composer.loader)
    if verb == "query":
        plugin.query(composer.name)
    else:
        {"install": plugin.install, "uninstall": plugin.uninstall}[verb]()


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


def _info(topic: str, composer: Composer, words: list[str]) -> Iterator[str]:
    """Yield the lines of `--info <topic>`."""
    is_wanted = _TOPICS if topic == "all" else (topic,)
    if topic == "all":
        yield f"Hydra {hydra.__version__}"
    if "plugins" in is_wanted:
        yield from _section("Plugins", [[kind.__name__] for kind in Plugins.instance().discover()])
    config = composer.compose(words)
    if "searchpath" in is_wanted:
        sources = config.hydra.runtime.config_sources
        rows = [[source.provider, f"{source.schema}://{source.path}"] for source in sources]
        yield from _section("Config search path", [["Provider", "Search path"], *rows])
    defaults = composer.loader.compute_defaults_list(composer.name, words, RunMode.RUN)
    if "defaults-tree" in is_wanted:
        yield from _section("Defaults tree", [[line] for line in _tree(defaults.defaults_tree, 0)])
    if "defaults" in is_wanted:
        rows = [
            [d.config_path or "", d.package or "", str(bool(d.is_self)), d.parent or ""]
            for d in defaults.defaults
        ]
        yield from _section("Defaults list", [["Config path", "Package", "_self_", "Parent"], *rows])
    if "config" in is_wanted:
        yield from _section("Config", [[OmegaConf.to_yaml(without_hydra(config))]])


def _section(title: str, rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield from (f"\n{title}", "-" * len(title))
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def _tree(node: Any, depth: int) -> Iterator[str]:
    """Yield a line for each config in a tree of defaults lists."""
    default = getattr(node, "node", node)
    text = default.get_config_path()
    if isinstance(default, GroupDefault):
        text = f"{default.get_override_key()}: {default.get_name() or 'null'}"
    yield f"{'  ' * depth}{text}"
    for child in getattr(node, "children", None) or ():
        yield from _tree(child, depth + 1)
