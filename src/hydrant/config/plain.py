"""Configs as plain values: flat keys, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import Container, OmegaConf

from hydrant.redaction import redacted

# Keys that do not change what a run computes: where it lies, and how it reads, evaluates and is watched.
_FREE = (
    "name",
    "claim",
    "resume",
    "resume_strict",
    "keep_last",
    "keep_best",
    "keep_every",
    "save_async",
    "histogram_every",
    "pictures",
    "allow_targets",
    "eval_batch_size",
    "data.num_workers",
    "data.on_error",  # a run that has not failed met no damaged sample
    "data.root",
)
_FREE_GROUPS = ("tracker.", "profiler.", "parallel.")
_NOT_FREE = ("parallel.sync_batch_norm", "parallel.param_dtype")


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of everything that is no mapping.

    >>> flatten({"optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}, "seed": 0})
    {'optimizer.lr': 0.1, 'optimizer.betas': [0.9, 0.99], 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= {f"{key}.{inner}": item for inner, item in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys in which two runs differ in what they compute, with both values; `None` for none.

    `micro_batch_size: auto` is whatever the other run has.
    """
    a, b = flatten(one) | _orders(one, ""), flatten(other) | _orders(other, "")
    return {
        key: (a.get(key), b.get(key))
        for key in sorted(a | b)
        if a.get(key) != b.get(key)
        and not is_free(key)
        and not (key == "micro_batch_size" and "auto" in (a.get(key), b.get(key)))
    }


def is_free(key: str) -> bool:
    """Whether a key, or a whole group, decides nothing of what a run computes.

    >>> is_free("tracker.mode"), is_free("tracker"), is_free("seed")
    (True, True, False)
    """
    return key in _FREE or (f"{key}.".startswith(_FREE_GROUPS) and key not in _NOT_FREE)


def _orders(config: Mapping[str, Any], prefix: str) -> dict[str, list[str]]:
    """In which order those keys stand whose order means something: the first pattern wins, schedules follow."""
    found: dict[str, list[str]] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            if key in ("patterns", "schedules") and len(value) > 1:
                found[f"{prefix}{key} in this order"] = list(value)
            found |= _orders(value, f"{prefix}{key}.")
    return found


def choices_of(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Hydra's choices of our own groups, without the grid, which is of no run: `{"optimizer": "adamw", ...}`."""
    own = (group for group in sorted(choices) if group != "sweep" and not group.startswith("hydra/"))
    return {group: choices[group] for group in own}


def record_of(config: Container) -> str:
    """A config as YAML, its interpolations as they are written; without secrets."""
    plain = OmegaConf.to_container(config, resolve=False)
    shown = redacted(plain)
    return OmegaConf.to_yaml(config if shown == plain else OmegaConf.create(shown))
