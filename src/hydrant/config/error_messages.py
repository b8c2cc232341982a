"""Turn Hydra's and OmegaConf's errors into errors that name the key."""

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from hydrant.config.groups import options_with, own_words, user_conf_dir
from hydrant.errors import ConfigError, HydrantError, nearest, quoted, suggestion
from hydrant.files.read_file import MAX_DEPTH, load_config

_OVERRIDE = re.compile(r"Could not override '([^']+)'\.\s+To append to your config use [^=]*=(.*)")
"""What Hydra says about the key and the value of an override that it cannot apply."""

_IN_FILE = re.compile(r"In '([^']*)':")


def explain(error: BaseException) -> HydrantError:
    """Return the HydrantError for an error that Hydra raised while it composed or resolved a config."""
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, HydrantError):
            return link
        if isinstance(link, MissingConfigException):
            return _missing_option(link)
        if isinstance(link, RecursionError):
            reason = f"a config file includes itself, or the config has more than {MAX_DEPTH} levels"
            return ConfigError("", reason)
        if isinstance(link, ConfigAttributeError | ConfigKeyError) and "not in struct" in str(link):
            return _not_in_struct(link, *_OVERRIDE.findall(str(error)))
    causes = [link for link in reversed(chain) if isinstance(link, OmegaConfBaseException)]
    # The innermost may have no key yet and name it in its text as $KEY.
    cause = next((link for link in causes if link.full_key), None)
    return _reworded(str(cause or error) or type(error).__name__, str(cause.full_key) if cause else "")


_MESSAGES = Path(__file__).with_name("hydras_messages.yaml")


def _reworded(text: str, key: str = "") -> ConfigError:
    """Return an error with what hydras_messages.yaml says for a message of Hydra or OmegaConf, else with its text."""
    text = " ".join(text.partition("\n    full_key:")[0].split())
    for pattern, wording in load_config(_MESSAGES.read_text(encoding="utf-8")).items():
        if match := re.search(pattern, text):
            parts = {"key": key, **match.groupdict()}
            reason, _, remedy = (part.format(**parts) for part in wording.partition("; "))
            return ConfigError(parts["key"], reason, remedy=remedy)
    return ConfigError(key, text)


def unknown_key(key: str, siblings: Iterable[str]) -> ConfigError:
    """Return the error for a key that a node of the config does not have."""
    parent, _, name = key.rpartition(".")
    if words := own_words(key, "<value>", missing=key):
        return ConfigError(key, "no such key", remedy=words)
    hint = suggestion(name, siblings, f"Keys of {parent}" if parent else "Keys")
    if not parent and not nearest(name, siblings):
        hint += f"; --cfg job prints them. A key of a part comes after its group: model.{name}"
    return ConfigError(key, "no such key", remedy=hint)


@contextmanager
def explained(*further: type[Exception]) -> Generator[None]:
    """Turn an error of Hydra or OmegaConf, or one of `further`, into one that names the key. Also a decorator.

    Raises:
        HydrantError: Hydra does not accept the overrides or a config file, or a `${...}` cannot be resolved.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError, *further) as error:
        raise explain(error) from None  # the message says all that Hydra's does


_MISSING = {
    "schedules.": ("no such schedule", "choose one: +scheduler@{key}=linear"),
    "hooks.": ("no such hook", "choose it first: hook={name}, or several: hook=[{name},...]"),
    **dict.fromkeys(
        ("optimizers.", "task.metrics.", "param_groups.patterns.", "data.extra_val."),
        ("does not exist yet", "to add it, write + before the key"),
    ),
}
"""The start of keys that a user names: what a missing one is, and how to add it."""


def _not_in_struct(error: Any, override: tuple[str, str] = ("", "")) -> ConfigError:
    """Return the error for a key that the config does not have; `override` would have changed it."""
    key = str(error.full_key)
    parent, _, name = key.rpartition(".")
    if words := own_words(*override, missing=key):
        return ConfigError(override[0], "no such key", remedy=words)
    for start, (reason, remedy) in _MISSING.items():
        if key.startswith(start):
            return ConfigError(key, reason, remedy=remedy.format(key=quoted(key), name=quoted(name)))
    node = error.parent_node
    names = [str(sibling) for sibling in node] if isinstance(node, DictConfig) and node else []
    if not names:
        remedy = f"write '{parent}={{_target_: ...}}'" if name == "_target_" else ""
        return ConfigError(key, f"no such key, because {parent} has no keys", remedy=remedy)
    siblings = [sibling for sibling in names if not sibling.startswith("_") and sibling != "hydra"]
    unknown = unknown_key(key, siblings)
    if not parent or own_words(key, "") or nearest(name, siblings):
        return unknown
    having = options_with(parent, name)
    more = f"{parent}={' or '.join(having)} {'has' if len(having) == 1 else 'have'} it"
    if not having:
        more = f"If its _target_ takes it, write +{quoted(override[0] or key)}=<value>"
    return ConfigError(key, unknown.reason, remedy=f"{unknown.remedy.rstrip('.')}. {more}")


def _missing_option(error: MissingConfigException) -> ConfigError:
    group, _, option = str(error.missing_cfg_file or "").removesuffix(".yaml").rpartition("/")
    if not group:
        return _reworded(str(error))
    file = _IN_FILE.match(str(error))
    where = f" (required by {file[1]}.yaml)" if file and file[1] not in ("train", "hydra/config") else ""
    where += ", and no conf/ here" * (group == "experiment" and user_conf_dir() is None)
    options = [name for name in error.options or [] if not name.startswith("_")]
    words = own_words(group, option, options)
    return ConfigError(group, f"no option {option!r}{where}", remedy=words or suggestion(option, options))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        # OmegaConf keeps the original error, which may hold the reason, in `cause`.
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__


BUILTIN_ERRORS = (ValueError, TypeError, AssertionError, LookupError, AttributeError, RecursionError)
"""Errors of Hydra for inputs that it does not check."""
