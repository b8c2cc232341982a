"""What `train` prints instead of training: --cfg, --info and the completion for a shell."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import hydra
from hydra.core.default_element import GroupDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.completion_plugin import CompletionPlugin
from hydra.types import RunMode
from omegaconf import Container, DictConfig, OmegaConf

from hydrant.config.compose import Composer, without_hydra
from hydrant.errors import ConfigError

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
    is_wanted = {topic}.union(
        ["plugins", "searchpath", "defaults-tree", "defaults", "config"] if topic == "all" else []
    )
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
