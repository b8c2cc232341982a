"""A run read back from its folder: its config and the model of one of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from hydrant import checkpoint
from hydrant.build import Prepared, prepare
from hydrant.config import check, compose, flatten
from hydrant.config.targets import check_consent
from hydrant.earlier import saved_config
from hydrant.errors import ConfigError, unknown_name
from hydrant.parallel import ALONE
from hydrant.runs import choices_in, options_of, overrides_of

WEIGHTS = ("model", "ema")


@dataclass(frozen=True)
class SavedRun:
    """A run as it was at a checkpoint: on the host, in evaluation mode."""

    folder: Path
    checkpoint: Path
    num_updates: int
    prepared: Prepared


def open_run(path: str, overrides: Sequence[str], *, weights: str) -> SavedRun:
    """The run at a run folder (its newest checkpoint) or at a checkpoint folder, with keys overridden.

    `weights` are its model's own, `model`, or the averaged ones, `ema`.

    Raises:
        ConfigError: there is no such run, or the overrides are wrong.
    """
    found = checkpoint.find(path, "")
    if weights not in WEIGHTS:
        raise unknown_name("--weights", "weights", weights, WEIGHTS)
    if weights not in checkpoint.parts(found):
        raise ConfigError("--weights", f"{found} holds no averaged weights; the run needs averaging=ema")
    folder = found.parents[1]
    own = saved_config(folder, "")
    check_consent(own.get("allow_targets"), overrides)
    saved = OmegaConf.create(own)
    config = _overridden(saved, folder, overrides) if overrides else check(saved)
    prepared = prepare({**config, "parallel": ALONE})
    checkpoint.Weights(found, weights).load(prepared.task.model, "model")
    prepared.task.load_state_dict(checkpoint.read_state(found, "task"), strict=False)  # what is its own
    prepared.task.eval()
    return SavedRun(folder, found, checkpoint.plain_state(found, "state")["num_updates"], prepared)


def _overridden(saved: DictConfig, folder: Path, overrides: Sequence[str]) -> Mapping[str, Any]:
    """The saved config with whatever these overrides name or change in the run's own choices."""
    recorded, options, new = overrides_of(folder), options_of(folder), choices_in(overrides)
    replaced = {key for key, value in new.items() if options.get(key) not in (None, value)}

    def stays(key: str) -> bool:
        return key not in new and key.partition(".")[0] not in replaced  # another option has other keys

    own = [override for override in recorded if stays(*choices_in([override]))]
    plain, fresh = (compose(words, given=overrides) for words in (recorded, [*own, *overrides]))
    named = [key.replace("/", ".").partition("@")[0] for key in new]
    with open_dict(saved):
        for key in (*_changed(plain, fresh), *named):
            if OmegaConf.select(fresh, key, default=_ABSENT) is not _ABSENT:  # `experiment` is no key
                OmegaConf.update(saved, key, OmegaConf.select(fresh, key), merge=False, force_add=True)
    return check(saved)


_ABSENT = object()


def _changed(plain: DictConfig, fresh: DictConfig) -> list[str]:
    """The keys in which a config differs: whole groups where another option was chosen, else single keys."""
    one, other = (OmegaConf.to_container(config, resolve=False) for config in (plain, fresh))
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    keys = list[str]()
    for name, after in other.items():
        before = one.get(name)
        if isinstance(before, dict) and isinstance(after, dict) and _is_same_part(before, after):
            old = flatten(before)
            keys += [f"{name}.{key}" for key, value in flatten(after).items() if old.get(key) != value]
        elif before != after:
            keys.append(str(name))
    return keys


def _is_same_part(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    return one.get("_target_") == other.get("_target_")
