"""Read the contenders and the tuned keys of a study."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hydrant.config.command_line import check_grid, check_overrides, swept_values
from hydrant.config.compose import JobComposer
from hydrant.config.flat import is_neutral
from hydrant.config.groups import group_options
from hydrant.config.schema import REPETITIONS
from hydrant.errors import ConfigError, quoted, shown
from hydrant.extensions.study.ranges import Range, declared_range, is_whole, range_around, read_range

_KEY = "hydra.sweeper"
_ABSENT = object()


def split_contender(text: str) -> tuple[str, list[str]]:
    """Return the name of a contender such as `name=slow optimizer=sgd optimizer.lr=0.1`, and its overrides.

    The name is "" if it has none.

    Raises:
        ConfigError: it is no list of overrides.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{_KEY}.contenders", f"{shown(text)} has an open quote ({error})") from None
    names = [word.removeprefix("name=") for word in words if word.startswith("name=")]
    words = [word for word in words if not word.startswith("name=")]
    check_overrides(words)
    parser = OverridesParser.create()
    several = [word for word in words if parser.parse_override(word).is_sweep_override()]
    if several or len(names) > 1 or "" in names:
        needs = "one name= or none, and one value of each key"
        remedy = f"give --contender for each value, or --tune {quoted((several or ['<key>'])[0])}"
        raise ConfigError(f"{_KEY}.contenders", needs=needs, got=text, remedy=remedy)
    return next(iter(names), ""), words


def key_of(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def name_contenders(contenders: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """Return the name of each contender: the given one, else its overrides.

    Without the overrides that all share, and the option alone if it suffices.

    >>> name_contenders([["optimizer=adamw"], ["optimizer=sgd"]], ["", "slow"])
    ['adamw', 'slow']
    >>> name_contenders([["optimizer=adamw", "model.dropout=0"], ["optimizer=adamw", "model.dropout=0.1"]], ["", ""])
    ['model.dropout=0', 'model.dropout=0.1']
    """
    return [name or short for name, short in zip(names, _short_names(contenders), strict=True)]


def _short_names(contenders: Sequence[Sequence[str]]) -> list[str]:
    shared = set(contenders[0]).intersection(*contenders[1:])
    unshared = [[word for word in words if word not in shared] for words in contenders]
    firsts = {key_of(words[0]) for words in unshared if words}
    is_option = len(firsts) == 1 and firsts <= group_options().keys()
    if is_option and all(len(words) == 1 for words in unshared):
        return [words[0].partition("=")[2] for words in unshared]
    return [" ".join(words or every) or "defaults" for words, every in zip(unshared, contenders, strict=True)]


def read_ranges(tune: Sequence[str], words: Sequence[str], composer: JobComposer) -> list[Range]:
    """Return the range of each tuned key for a contender: given, declared by its option, or around its default.

    Args:
        tune: `optimizer.lr`, `optimizer.lr=1e-4..1e-1` or `optimizer.lr=1e-3,1e-2`.
        words: all overrides of the contender.

    Raises:
        ConfigError: a key is unknown or has no range.
    """
    if not tune:
        return []
    config = composer.compose(list(words))
    for text in tune:
        key, equals, _ = text.partition("=")
        _check_key(key)
        if OmegaConf.select(config, key, default=_ABSENT) is _ABSENT:
            check_overrides([text if equals else f"{key}=..."])  # raises: which key is meant
            composer.compose([*words, f"{key}=null"])  # raises: what is wrong with it
    options: Any = OmegaConf.to_container(config.hydra.runtime.choices)
    return [_read_range(text, config, options, composer, len(tune)) for text in tune]


def _check_key(key: str) -> None:
    """Raise ConfigError for a key that a study cannot tune."""
    if key in REPETITIONS or is_neutral(key) or re.match(r"hydra(\.|/|$)", key):
        luck = "it repeats a run, and its best value is luck"
        why = luck if key in REPETITIONS else "it has no effect on results"
        raise ConfigError(key, f"cannot be tuned: {why}")


def _read_range(text: str, config: Any, options: Any, composer: JobComposer, num_keys: int) -> Range:
    key, equals, value = text.partition("=")
    default = OmegaConf.select(config, key)
    if not equals:
        declared = declared_range(key, options)
        return read_range(key, declared, num_keys) if declared else range_around(key, default, num_keys)
    if ".." in value:
        return read_range(key, value, num_keys, is_whole=is_whole(default))
    check_overrides([text])
    [override] = composer.parse([text])
    check_grid([override])
    values = list(swept_values(key, override)) if override.is_sweep_override() else [value]
    texts = [str(item) for item in values]
    if len(set(texts)) < max(len(texts), 2) or {"nan", "inf", "-inf"} & {*texts}:
        remedy = f"write {quoted(key)}=1e-4..1e-1, or a list"
        raise ConfigError(key, needs="two finite values or more, each once", got=value, remedy=remedy)
    return Range(key, tuple(texts))
