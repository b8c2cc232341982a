"""Hydra's and OmegaConf's errors in our words: the key, what was given, what to do."""

from __future__ import annotations

import re

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from hydrant.errors import ConfigError, nearest


def explain(error: BaseException) -> ConfigError:
    """The ConfigError for an error that Hydra or OmegaConf raised while composing or resolving."""
    if isinstance(error, MissingConfigException):
        return _missing_option(error)
    cause = _first(error, OmegaConfBaseException)
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if cause is not None:
        key = str(getattr(cause, "full_key", "") or "")
        text = str(cause).strip().splitlines()[0]
        if "not in 'TrainConfig'" in text:
            from hydrant.config.check import unknown_key

            return unknown_key(key)
        hint = ""
        if first_line.startswith("Could not override"):
            key = first_line.split("'")[1]
            hint = f"; to add a key write +{key}=<value>"
        wrong = re.match(r"Value '(.*)' of type '\w+' could not be converted to (\w+)", text)
        if wrong:
            text = f"{wrong[1]!r} is no {wrong[2].lower()}"
        return ConfigError(key, text + hint)
    return ConfigError("", first_line)


def _missing_option(error: MissingConfigException) -> ConfigError:
    path = str(error.missing_cfg_file or "").removesuffix(".yaml")
    group, _, option = path.rpartition("/")
    options = sorted(error.options or [])
    if not group:
        return ConfigError("", str(error).strip().splitlines()[0])
    close = nearest(option, options)
    hint = f"; did you mean {' or '.join(close)}?" if close else ";"
    return ConfigError(group, f"no option {option!r}{hint} Options: {', '.join(options)}")


def _first(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


HYDRA_ERRORS = (HydraException, OmegaConfBaseException)
"""What composing and resolving may raise."""
