"""Compose configs by Hydra's Compose API, without starting anything.

Hydra searches the user's conf folder first, then that of the primary config, then Hydrant's. Where the command line or
`debug` chooses another option than an experiment, what the experiment sets for its option is dropped.

Jobs of a sweep that differ in values only share what Hydra makes of the config files.
tests/config/test_job_composer.py compares their configs with those that Hydra composes for each job anew.
"""

import itertools
import pickle
import re
import threading
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from hydrant.config.check import check_hydra_node, check_receiver
from hydrant.config.command_line import SCHEME, check_grid, check_overrides, expand_lists, parsed, with_limits
from hydrant.config.error_messages import BUILTIN_ERRORS, explained
from hydrant.config.flat import register_resolvers
from hydrant.config.groups import conf_dir, option_fields, options_with, user_conf_dir
from hydrant.errors import ConfigError, shown
from hydrant.terminal.console import notice


@dataclass(frozen=True)
class Replaced:
    """An option that an experiment, or the primary config without one, would have, and which one is chosen instead."""

    group: str
    option: str
    chosen: str

    def takes_along(self, field: str) -> bool:
        """Whether a field of the option goes with it: the chosen one has another default, or lacks it.

        A field that only the chosen option has was meant for it. One that no option has is for the check of arguments.
        """
        before, now = option_fields(self.group, self.option), option_fields(self.group, self.chosen)
        if field in now:
            return field in before and before[field] != now[field]
        return field in before or bool(options_with(self.group, field))


_active: ContextVar[tuple[Mapping[str, Replaced], dict[str, Any]]] = ContextVar("active", default=({}, {}))
"""Replaced options by their place in the config; and the fields that went with them, by key, with their values."""


def replaced_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Replaced]:
    """Return what differs between two choices of options, as Hydra records them, by place.

    >>> replaced_options({"optimizer": "sgd", "model": "mlp"}, {"optimizer": "adam", "model": "mlp"})
    {'optimizer': Replaced(group='optimizer', option='sgd', chosen='adam')}
    """
    parts = {key: (*key.partition("@")[::2], option, now.get(key)) for key, option in before.items()}
    return {
        place or group.replace("/", "."): Replaced(group, option, chosen)
        for group, place, option, chosen in parts.values()
        if isinstance(option, str) and isinstance(chosen, str) and option != chosen
    }


@contextmanager
def replacing(options: Mapping[str, Replaced], words: Sequence[str]) -> Generator[None]:
    """Let `take_replaced` take fields away in this context; then print those that `words` do not set, once."""
    fields = dict[str, Any]()
    token = _active.set((options, fields))
    try:
        yield
    finally:
        _active.reset(token)
    keys_of_words = {word.lstrip("+~").partition("=")[0] for word in words}
    for place, replaced in options.items():
        gone = [f"{key}={shown(fields[key])}" for key in fields if key.rpartition(".")[0] == place]
        if gone := [text for text in gone if text.partition("=")[0] not in keys_of_words]:
            verb = "is" if len(gone) == 1 else "are"
            reason = f"{verb} left out, because its {place} is {replaced.option}"
            _print(f"with {place}={replaced.chosen}, the experiment's {', '.join(gone)} {reason}")


_print = cache(notice)


def take_replaced(content: Mapping[str, Any], path: str) -> None:
    """Take from the content of a config file what goes with a replaced option. Only experiments lose anything."""
    options, fields = _active.get()
    for place, replaced in options.items() if path.startswith("experiment/") else ():
        node: Any = content
        for name in place.split("."):
            node = node.get(name, {}) if isinstance(node, dict) else {}
        for field in [*node] if isinstance(node, dict) else ():
            if "_target_" in node or replaced.takes_along(str(field)):
                fields.setdefault(f"{place}.{field}", node.pop(field))  # the outer experiment is read first


config_dir: ContextVar[Path | None] = ContextVar("config_dir", default=None)
"""The folder of `--config-dir`, which comes last."""


class HydrantSearchPath(SearchPathPlugin):
    """Add the user's conf folder at the front and Hydrant's at the end. Hydra calls this plugin."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        register_resolvers()
        for element in search_path.get_path():
            element.path = with_limits(element.path)
        paths = [element.path.removeprefix(f"{SCHEME}://") for element in search_path.get_path()]
        present = {Path(path).resolve() for path in paths}
        for folder, add in ((user_conf_dir(), search_path.prepend), (conf_dir(), search_path.append)):
            if folder is not None and folder.resolve() not in present:
                add(provider="hydrant", path=f"{SCHEME}://{folder}")
        if (folder := config_dir.get()) is not None:
            search_path.append(provider="command-line", path=f"{SCHEME}://{folder}")


ENTRY = "train"
"""The primary config: conf/train.yaml."""

HYDRA_LOCK = threading.RLock()
"""Held while a config is composed, because Hydra's state, and what is set for it, belong to the whole process."""

_VERSION_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
"""1.4 is its own base, and warns if it is given one."""


@dataclass(frozen=True)
class Primary:
    """The config that is composed, and where it is: what --config-path, --config-name and --config-dir change."""

    folder: Path
    name: str = ENTRY
    last_folder: Path | None = None


class Composer:
    """Composes the primary config with overrides, inside of `composing`.

    Args:
        name: of the primary config.
        words: the overrides on the command line. Only these consent to `allow_targets`, receivers of the results and
            so on.
    """

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name, self.words = name, words

    @property
    def loader(self) -> ConfigLoader:
        return GlobalHydra.instance().config_loader()

    def load(self, overrides: Iterable[str], mode: RunMode) -> DictConfig:
        """Return a config as Hydra composes it, without what an experiment sets for options that others replace."""
        words = list(overrides)
        with explained(*BUILTIN_ERRORS):
            config = self.loader.load_configuration(self.name, words, mode)
            choices = config.hydra.runtime.choices
            # These decide which options the experiment has.
            deciding = ("experiment", "hydra.searchpath")
            kept = [word for word in words if parsed(word).key_or_group in deciding]
            if choices.get("experiment") is None or kept == words:
                return config
            before = self.loader.compute_defaults_list(self.name, kept, mode).overrides.known_choices
            if not (replaced := replaced_options(before, choices)):
                return config
            with replacing(replaced, [*self.words, *words]):
                return self.loader.load_configuration(self.name, words, mode)

    def compose(
        self, overrides: Iterable[str], mode: RunMode = RunMode.RUN, *, sends_results: bool = True
    ) -> DictConfig:
        """Return the checked config of a run or a sweep, with the node `hydra`.

        Args:
            overrides: one option each.
            mode: of a sweep, a key with several values has its default.
            sends_results: also check who receives the results.

        Raises:
            ConfigError: It cannot be composed.
        """
        config = self.load(overrides, mode)
        check_hydra_node(config, self.words)
        if sends_results:
            check_receiver(config, self.words)
        config.hydra.mode = config.hydra.mode or (mode if mode == RunMode.RUN else None)
        return config

    def compose_command(self, *, is_sweep: bool) -> DictConfig:
        """Return the config of a command: that of a sweep if it has --multirun, or a config file says so.

        Raises:
            ConfigError: It cannot be composed.
        """
        if is_sweep or "hydra.mode=MULTIRUN" in self.words:
            return self.compose([*self.words, "hydra.mode=MULTIRUN"], RunMode.MULTIRUN)
        if any(parsed(word).is_sweep_override() for word in self.words):
            # A run, composed below, refuses several values.
            config = self.compose(self.words, RunMode.MULTIRUN)
            if config.hydra.mode == RunMode.MULTIRUN:
                return config
        config = self.compose(self.words)
        return self.compose(self.words, RunMode.MULTIRUN) if config.hydra.mode == RunMode.MULTIRUN else config

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Return parsed overrides, of which `glob(*)` knows the options.

        Raises:
            ConfigError: One of them cannot be parsed.
        """
        with explained(*BUILTIN_ERRORS):
            return OverridesParser.create(config_loader=self.loader).parse_overrides(list(overrides))


@contextmanager
def composing(words: Sequence[str] = (), primary: Primary | None = None) -> Generator[Composer]:
    """Initialize Hydra for composing, in one thread at a time. The Hydra app of this process is restored afterwards.

    Args:
        words: the overrides on the command line, with one option each.
        primary: conf/train.yaml by default.
    """
    primary = primary or Primary(conf_dir())
    with HYDRA_LOCK:
        register_resolvers()
        app, base = GlobalHydra.instance().hydra, VersionBase.instance()
        version: Any = base.version_base
        GlobalHydra.instance().clear()
        token = config_dir.set(primary.last_folder)
        try:
            folder = str(primary.folder.absolute())
            with explained(), hydra.initialize_config_dir(config_dir=folder, job_name=ENTRY, **_VERSION_BASE):
                yield Composer(primary.name, words)
        finally:
            config_dir.reset(token)
            GlobalHydra.instance().hydra, base.version_base = app, version


def compose(overrides: Sequence[str], from_user: Sequence[str] | None = None) -> DictConfig:
    """Return the config that `train` would run with these overrides.

    `from_user` are the overrides that the user wrote on the command line, default all. Only these may consent to
    `allow_targets`.

    Raises:
        ConfigError: The config cannot be composed.
    """
    check_overrides(overrides)
    with composing(overrides if from_user is None else from_user) as composer:
        return without_hydra(composer.compose(expand_lists(overrides), sends_results=False))


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """Return the config that `train` would run with these overrides, with the node `hydra`.

    Raises:
        ConfigError: The config cannot be composed.
    """
    check_overrides(overrides)
    with composing(overrides) as composer:
        return composer.compose(expand_lists(overrides))


def without_hydra(config: DictConfig) -> DictConfig:
    """Take the node `hydra` out of a composed config."""
    with open_dict(config):
        del config["hydra"]
    return config


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job of a grid such as `precision=fp32,bf16 seed=0,1`.

    Raises:
        ConfigError: An override cannot be parsed or has no values.
    """
    check_overrides(overrides)
    with composing() as composer:
        parsed = composer.parse(expand_lists(overrides))
    check_grid(parsed)
    if any(override.key_or_group == "sweep" for override in parsed):
        remedy = "write the values here: optimizer=adamw,sgd"
        raise ConfigError("sweep", "works with train --multirun only", remedy=remedy)
    return grid(parsed)


def grid(overrides: Iterable[Override]) -> list[list[str]]:
    """Return every combination of the values of parsed overrides. Of several for a key, the last one counts."""
    values = dict[str, list[str]]()
    for override in overrides:
        key = override.get_key_element()
        is_swept = override.is_sweep_override()
        texts = override.sweep_string_iterator() if is_swept else [override.get_value_element_as_str()]
        values[key] = [f"{key}={text}" for text in texts]
    return [list(words) for words in itertools.product(*values.values())]


def uncompiled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked config with the group `compile` replaced by `compile=eager` and nothing else changed."""
    return {**config, "compile": OmegaConf.to_container(compose(["compile=eager"]).compile)}


class JobComposer:
    """Composes the jobs of one sweep, inside of `composing`. Config files that change in between have no effect.

    Args:
        composer: of the command.
        sweep: the config of the sweep.
    """

    def __init__(self, composer: Composer, sweep: DictConfig) -> None:
        self._composer, self._sweep = composer, sweep
        words: Any = OmegaConf.to_container(sweep.hydra.overrides.hydra)
        # Jobs lack the word `sweep=`, which may have chosen the sweeper that these are for.
        of_sweeper = ("hydra.sweeper.", "hydra/sweeper/")
        self._common = [word for word in words if not word.lstrip("+~").startswith(of_sweeper)]
        self._shared: dict[Sequence[str], bytes] = {}  # by the overrides that choose: configs without values
        self._overrides = dict[str, Override]()  # by their words
        read_options = composer.loader.get_group_options
        self._options = cache(partial(read_options, config_name=composer.name, overrides=self._common))

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        return self._composer.parse(overrides)

    def compose(self, words: Sequence[str]) -> DictConfig:
        """Return the checked config of a job, with the node `hydra`.

        Raises:
            ConfigError: It cannot be composed.
        """
        check_overrides([word for word in words if word not in self._overrides])
        self._overrides |= {word: parsed(word) for word in words}
        overrides = [self._overrides[word] for word in words]
        values = [override for override in overrides if self._is_value(override)]
        choosing = tuple(str(override.input_line) for override in overrides if override not in values)
        if choosing not in self._shared:
            # A fifth of the size: a sweep may have thousands of choices.
            self._shared[choosing] = zlib.compress(pickle.dumps(self._load(choosing)), 1)
        config: DictConfig = pickle.loads(zlib.decompress(self._shared[choosing]))
        try:
            _apply(config, values)
            _record_overrides(config, overrides)
        except (_UnlikeOthers, OmegaConfBaseException, TypeError):
            config = self._load(words)  # Hydra applies the values, or says what is wrong with them
        check_receiver(config, self._composer.words)
        return config

    def _load(self, words: Iterable[str]) -> DictConfig:
        """Return the config of a job as Hydra composes it. Its sweeper and launcher may differ from the sweep's."""
        config = self._composer.load([*self._common, *words], RunMode.RUN)
        OmegaConf.copy_cache(from_config=self._sweep, to_config=config)
        check_hydra_node(config, self._composer.words)
        config.hydra.mode = self._sweep.hydra.mode  # it may come from a config file that jobs leave out
        return config

    def _is_value(self, override: Override) -> bool:
        """Return whether an override changes a value, and no choice of config files."""
        key = override.key_or_group
        is_wrong = override.package is not None or override.is_sweep_override()  # Hydra says why
        if is_wrong or re.split(r"[./]", key)[0] in ("hydra", "allow_targets"):  # decide how it is checked
            return False
        # Hydra reads the primary config for each answer, and the first segment of most keys is no folder.
        is_group = key.split("/")[0] in self._options("", ObjectType.GROUP) and self._options(key, None)
        return isinstance(override.value(), dict) or not is_group


class _UnlikeOthers(Exception):
    """The config cannot be made from one that others share."""


def _apply(config: DictConfig, overrides: Iterable[Override]) -> None:
    """Change a config as Hydra does.

    Raises:
        _UnlikeOthers: an override is of a kind that is rare, or Hydra refuses it.
    """
    for override in overrides:
        key, value = override.key_or_group, override.value()
        if override.type == OverrideType.CHANGE:
            OmegaConf.update(config, key, value, merge=True)
            continue
        present = OmegaConf.select(config, key, throw_on_missing=False)
        parent, _, name = key.rpartition(".")
        node = present if present is None else OmegaConf.select(config, parent) if parent else config
        if override.type == OverrideType.FORCE_ADD or (
            override.type == OverrideType.ADD and (present is None or isinstance(value, (dict, list)))
        ):
            OmegaConf.update(config, key, value, merge=True, force_add=True)
        elif override.type == OverrideType.DEL and value is None and isinstance(node, DictConfig):
            with open_dict(config):
                del node[name]
        else:
            raise _UnlikeOthers


def _record_overrides(config: DictConfig, overrides: Iterable[Override]) -> None:
    """Record the overrides of a job in its node `hydra`, as Hydra does."""
    settings = config.hydra
    of_job = [(str(o.input_line), o.key_or_group) for o in overrides if not o.is_hydra_override()]
    settings.overrides.task = [word for word, _ in of_job]
    if not OmegaConf.is_interpolation(settings.job, "override_dirname"):  # before Hydra 1.4
        form = settings.job.config.override_dirname
        kept = sorted(word for word, key in of_job if key not in form.exclude_keys)
        settings.job.override_dirname = form.item_sep.join(kept).replace("=", form.kv_sep)
