"""Is this config one that can run? Everything that can be told without data and without a device."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydrant.clock import Duration
from hydrant.config.messages import explain
from hydrant.config.schema import TrainConfig
from hydrant.config.targets import check_targets
from hydrant.errors import ConfigError, nearest

_POSITIVE = ("global_batch_size", "micro_batch_size", "eval_batch_size", "keep_last", "max_grad_norm",
             "limit_train_samples", "limit_val_samples")  # fmt: skip


def check(config: DictConfig) -> dict[str, Any]:
    """The resolved config in plain types: dicts, lists, strings, numbers, `None`.

    Raises:
        ConfigError: an unknown key, a wrong type or value, an unresolved or missing value, a target that is not
            allowed or that does not take an argument given to it.
    """
    resolved = _resolved(config)
    for key in _POSITIVE:
        if resolved[key] is not None and resolved[key] <= 0:
            raise ConfigError(key, f"{resolved[key]} is not above 0")
    for key in ("log_every", "eval_every", "save_every", "duration"):
        if resolved[key] is not None or key == "duration":
            Duration.parse(resolved[key], key)
    if resolved["best"]["mode"] not in ("max", "min"):
        raise ConfigError("best.mode", f"{resolved['best']['mode']!r} is neither max nor min")
    if "lr" in resolved["schedules"]:
        raise ConfigError("schedules.lr", "lr is scheduled by scheduler; remove it here")
    for group in ("data", "model", "task", "optimizer", "scheduler", "precision", "compile", "parallel", "tracker"):
        if not isinstance(resolved[group], dict) or "_target_" not in resolved[group]:
            raise ConfigError(group, f"{resolved[group]!r} chooses no option; write {group}=<option>, see --help")
    check_targets(resolved)
    return resolved


def _resolved(config: DictConfig) -> dict[str, Any]:
    try:
        OmegaConf.resolve(config)
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise ConfigError(missing[0], f"needs a value; give {missing[0]}=<value>")
        plain = OmegaConf.to_container(config)
        assert isinstance(plain, dict)
        unknown = [str(key) for key in plain if key not in TrainConfig.__dataclass_fields__]
        if unknown:
            raise unknown_key(unknown[0])
        typed = OmegaConf.merge(OmegaConf.structured(TrainConfig), plain)
        container = OmegaConf.to_container(typed)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def unknown_key(key: str) -> ConfigError:
    """The error for a key that the schema does not have."""
    close = nearest(key, TrainConfig.__dataclass_fields__)
    return ConfigError(key, "no such key" + (f"; did you mean {' or '.join(close)}?" if close else "; see conf/train.yaml"))
