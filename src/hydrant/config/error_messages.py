"""Turn Hydra's and OmegaConf's errors, and what a part raises about its arguments, into errors that name the key."""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from hydrant.checks import nearest, suggestion
from hydrant.config.foreign_words import moved_key, own_option, own_words
from hydrant.config.groups import listed, options_with, unplaced_option, with_its_group
from hydrant.config.signatures import takes
from hydrant.config.user_errors import is_in_user_code, place
from hydrant.errors import ConfigError, HydrantError, first_line, quoted, typed_line
from hydrant.files.bounded_yaml import MAX_DEPTH
from hydrant.files.plain_values import children

_ARGUMENT_ERRORS = (HydraException, TypeError, ValueError, RuntimeError, AssertionError, LookupError,
                    AttributeError, ArithmeticError, OSError)  # fmt: skip
"""The errors by which third-party code rejects arguments. Errors of other types are shown with their type and line."""

_BUGS = (TypeError, LookupError, AttributeError, ArithmeticError)
"""Errors that user code seldom raises on purpose."""


@contextmanager
def as_config_error(key: str, node: Mapping[str, Any]) -> Generator[None]:
    """Re-raise an exception of the part at `key`, whose config is `node`, as a ConfigError. Also a decorator.

    Raises:
        HydrantError: the part raised it. Another error of the part becomes a ConfigError with its message.
    """
    try:
        yield
    except HydrantError:
        raise
    except Exception as error:  # a user's part may raise anything
        root: BaseException = error
        while root.__cause__ is not None and not isinstance(root, HydrantError):
            root = root.__cause__
        if isinstance(root, HydrantError):
            raise root from error
        text = first_line(root)
        is_bug = isinstance(root, _BUGS) and is_in_user_code(root)
        if is_bug or not isinstance(root, _ARGUMENT_ERRORS):
            text = f"{typed_line(root)} (at {place(root)})"
        rejected = rejected_key(key, node, text)
        remedy = f"give {quoted(rejected)} another value" if rejected != key else ""
        raise ConfigError(rejected, f"{node['_target_']} refuses it: {text}", remedy=remedy) from error


@contextmanager
def prefix_error_keys(prefix: str, settings: Mapping[str, Any]) -> Generator[None]:
    """Put `prefix`, such as `optimizers.critic.`, before the key of a ConfigError about one of these settings.

    Raises:
        ConfigError: the one raised inside, with the longer key.
    """
    try:
        yield
    except ConfigError as error:
        if error.key.partition(".")[0] in settings:
            raise error.at(f"{prefix}{error.key}") from error
        raise


def rejected_key(key: str, node: Mapping[str, Any], message: str) -> str:
    """Return the config key of the argument that `message` rejects.

    It is the argument that the message names; else the only one whose value it ends with; else `key`.

    >>> rejected_key("optimizer", {"lr": -1, "eps": 1e-8}, "Invalid learning rate: -1")
    'optimizer.lr'
    """
    arguments = {name: value for name, value in node.items() if not name.startswith("_")}
    words = set(re.findall(r"\w+", message))
    named = [name for name in arguments if name in words]
    rejected_value = message.rpartition(":")[2].strip().rstrip(".")
    texts = {
        name: [str(value), *(str(item) for _, item in children(value, ""))]
        for name, value in arguments.items()
    }
    with_value = [name for name in texts if rejected_value in texts[name]]
    matches = named if len(named) == 1 else with_value
    return f"{key}.{matches[0]}" if len(matches) == 1 else key


_WORDINGS = {  # pattern of Hydra's message: Hydrant's message
    re.compile(r"Ambiguous value for argument '(?P<key>[^=]*)=(?P<value>.*?)' 1\."): (
        "{value} are several values; add --multirun to train with each, or write a list: {key}=[{value}]"
    ),
    re.compile(
        r"Multiple values for (?P<key>\S+)\. To override a value use 'override [^:]*: (?P<value>.*)'"
    ): ("one is chosen already; to choose another, write {key}={value} without +"),
    re.compile(r"Could not override '(?P<key>[^']+)'.*To append to your default list use (?P<value>.*)"): (
        "nothing is chosen there yet; write {value}"
    ),
    re.compile(r"Could not append to config\. An item is already at '(?P<key>[^']+)'"): (
        "exists already; to change it, write {key}=<value> without +"
    ),
    re.compile(
        r"Could not delete.*'(?P<key>[^']+)'.*(does not exist|No match)"
    ): "no such key, so there is nothing to remove",
    re.compile(r"Cannot find primary config '(?P<value>[^']+)'(?P<key>)"): (
        "--config-name: no config {value!r} in the config folders; see --info searchpath"
    ),
    re.compile(
        "(?P<key>)list indices must be integers"
    ): "an item of a list cannot be removed; write the list without it",
}
_INCLUDE = "_create_defaults_tree_impl"
"""The function of Hydra that reads a config file and those in its defaults list."""

_APPLY = "_apply_overrides_to_config"
"""The function of Hydra that changes the config by the overrides."""

_LIST_FOR_MAPPING = re.compile("Cannot merge (DictConfig with ListConfig|incompatible container types)")
"""How OmegaConf 2.3 and 2.4 say that a list stands where a mapping is needed."""

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
            return _endless(link)
        if (file := _IN_FILE.match(str(link))) and (unplaced := unplaced_option(file[1])):
            return unplaced
        if file and _LIST_FOR_MAPPING.search(str(link)) and (is_list := listed(file[1])):
            return is_list
        if isinstance(link, ConfigAttributeError | ConfigKeyError) and "not in struct" in str(link):
            return _not_in_struct(link, _override_in(chain))
    causes = [link for link in reversed(chain) if isinstance(link, OmegaConfBaseException)]
    if causes:  # the innermost may have no key yet and name it in its text as $KEY
        cause = next((link for link in causes if link.full_key), causes[-1])
        return ConfigError(str(cause.full_key or ""), first_line(cause))
    return _reworded(" ".join(str(error).split()) or type(error).__name__, _override_in(chain)[0])


def _reworded(text: str, key: str = "") -> ConfigError:
    for pattern, wording in _WORDINGS.items():
        if match := pattern.search(text):
            reason, _, remedy = (part.format(**match.groupdict()) for part in wording.partition("; "))
            return ConfigError(match["key"] or key, reason, remedy=remedy)
    return ConfigError(key, text)


def unknown_key(key: str, siblings: Iterable[str]) -> ConfigError:
    """Return the error for a key that a node of the config does not have."""
    parent, _, name = key.rpartition(".")
    if words := own_words(key, "<value>") or with_its_group(key, "<value>"):
        return ConfigError(key, "no such key", remedy=words)
    hint = suggestion(name, siblings, f"Keys of {parent}" if parent else "Keys")
    if not parent and not nearest(name, siblings):
        hint += f"; hydrant explain prints them. A key of a part comes after its group: model.{name}"
    return ConfigError(key, "no such key", remedy=hint)


@contextmanager
def explain_interpolation(config: DictConfig) -> Generator[None]:
    """Turn an OmegaConf error of resolving `config` into an error that names the key.

    Raises:
        ConfigError: A `${...}` cannot be resolved.
    """
    try:
        yield
    except OmegaConfBaseException as error:
        raise _first_unresolvable(config, "") or explain(error) from error


@contextmanager
def explain_unchecked() -> Generator[None]:
    """Turn one of `BUILTIN_ERRORS` that Hydra raises into a HydrantError.

    Raises:
        HydrantError: Hydra does not accept the overrides or a config file.
    """
    try:
        yield
    except BUILTIN_ERRORS as error:
        raise explain(error) from error


def _first_unresolvable(node: Container, prefix: str) -> HydrantError | None:
    names: Iterable[Any] = node.keys() if isinstance(node, DictConfig) else range(len(list(node)))
    for name in names:
        key = f"{prefix}{name}"
        try:
            value = node[name]
        except OmegaConfBaseException as error:
            known = next((link for link in _chain(error) if isinstance(link, HydrantError)), None)
            raw = OmegaConf.to_container(node, resolve=False)
            return known or ConfigError(key, f"{raw[name]} cannot be resolved: {_reason(error)}")  # type: ignore[index]
        inner = _first_unresolvable(value, f"{key}.") if isinstance(value, Container) else None
        if inner is not None:
            return inner
    return None


_NO_LIST = re.compile(r"node `([^`]+)` is not a container and thus cannot contain")
"""OmegaConf's message about `${data.input_shape[0]}` if the shape is null."""


def _reason(error: BaseException) -> str:
    if match := _NO_LIST.search(str(error)):
        return f"{match[1]} holds no list; give {match[1]}=[...]"
    reason = re.sub(r"^\w+ raised while resolving interpolation: ", "", first_line(error)).strip('"')
    return reason.strip() or f"{type(error.__cause__ or error).__name__}, without a message"


def _override_in(chain: Iterable[BaseException]) -> tuple[str, str]:
    """Return key and value of the override that Hydra could not apply; empty if there is none."""
    frames = (frame for link in chain for frame, _ in walk_tb(link.__traceback__))
    override = next((f.f_locals.get("override") for f in frames if f.f_code.co_name == _APPLY), None)
    return (override.key_or_group, str(override.input_line).partition("=")[2]) if override else ("", "")


_NAMED_BY_USER = ("optimizers.", "task.metrics.", "param_groups.patterns.", "data.extra_val.")


def _not_in_struct(error: Any, override: tuple[str, str]) -> ConfigError:
    key = str(error.full_key)
    parent, _, name = key.rpartition(".")
    is_node_missing = override[0] != key
    if words := own_words(*override) or (moved_key if is_node_missing else with_its_group)(*override):
        return ConfigError(override[0], "no such key", remedy=words)
    if parent == "schedules":
        return ConfigError(key, "no such schedule", remedy=f"choose one: +scheduler@{quoted(key)}=linear")
    if parent == "hooks":
        words = f"choose it first: hook={quoted(name)}, or several: hook=[{quoted(name)},...]"
        return ConfigError(key, "no such hook", remedy=words)
    if key.startswith(_NAMED_BY_USER):
        return ConfigError(key, "does not exist yet", remedy="to add it, write + before the key")
    node = error.parent_node
    siblings: Mapping[Any, Any] = node if isinstance(node, DictConfig) else {}
    if not siblings and name == "_target_":  # of a part that is null
        remedy = f"to make it a part, write +{quoted(key)}={quoted(override[1] or '<class>')}"
        return ConfigError(key, f"{parent} is null", remedy=remedy)
    if not siblings:
        return ConfigError(key, f"no such key, because {parent} has no keys")
    unknown = unknown_key(key, [str(s) for s in siblings if not str(s).startswith("_") and s != "hydra"])
    is_misspelt, having = nearest(name, map(str, siblings)), options_with(parent, name)
    if "_target_" not in siblings or own_words(key, "") or (is_misspelt and not having):
        return unknown
    if takes(siblings["_target_"], name):  # imports its library
        remedy = f"{unknown.remedy.rstrip('.')}. To add it, write +{quoted(key)}=<value>"
        return unknown if is_misspelt else ConfigError(key, unknown.reason, remedy=remedy)
    if having:
        has = "has" if len(having) == 1 else "have"
        words = f"{parent}={' or '.join(having)} {has} it"
        return ConfigError(key, unknown.reason, remedy=f"{unknown.remedy.rstrip('.')}. {words}")
    return unknown


def _missing_option(error: MissingConfigException) -> ConfigError:
    group, _, option = str(error.missing_cfg_file or "").removesuffix(".yaml").rpartition("/")
    if not group:
        return _reworded(" ".join(str(error).split()))
    file = _IN_FILE.match(str(error))
    where = f" (required by {file[1]}.yaml)" if file and file[1] not in ("train", "hydra/config") else ""
    options = [name for name in error.options or [] if not name.startswith("_")]
    words = own_option(group, option, options)
    return ConfigError(group, f"no option {option!r}{where}", remedy=words or suggestion(option, options))


def _endless(error: RecursionError) -> ConfigError:
    """Return the error for a config file that includes itself, or for values that are nested too deeply."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    files = [frame.f_locals.get("path") for frame in frames if frame.f_code.co_name == _INCLUDE]
    if file := next(filter(None, reversed(files)), None):
        message = f"{file}.yaml includes itself, perhaps through another file"
        return ConfigError("defaults", message, remedy="remove that entry")
    return ConfigError("", f"the config is nested more than {MAX_DEPTH} levels deep")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        # OmegaConf keeps the original error, which may hold the reason, in `cause`.
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__


HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)
"""The errors that Hydra and OmegaConf raise on purpose while they compose and resolve."""

BUILTIN_ERRORS = (ValueError, TypeError, AssertionError, LookupError, AttributeError, RecursionError)
"""Further errors of Hydra, for inputs that it does not check."""
