"""Configs as flat key-value pairs, their differences, and keys that an earlier version lacked or alone had."""

import pickle
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, cast

import yaml
from omegaconf import Container, OmegaConf

from hydrant.config.groups import content_of, hydrants_dirs
from hydrant.config.schema import INTERVALS, REPETITIONS
from hydrant.files.redaction import redacted

# Keys that have no effect on what a run computes: its folder, how it reads data, evaluates and is tracked.
_NEUTRAL = ("name", "claim", "tags", "notes", "resume", "resume_strict", "keep_last", "keep_best",
            "keep_every", "save_async", "histogram_every", "pictures", "allow_targets", "eval_batch_size",
            "data.num_workers", "data.root",
            "data.on_error")  # a run that did not fail met no damaged sample  # fmt: skip
_NEUTRAL_GROUPS = ("tracker.", "tracker@", "trackers.", "profiler.", "parallel.")
_NOT_NEUTRAL = ("parallel.sync_batch_norm", "parallel.param_dtype")
_AFTER_TRAINING = ("test_at_end", "limit_test_samples", "data.test", "data.test_dir")


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return every value that is not a mapping under its dotted key.

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
    """Return the keys that make two runs compute different results, with both values; None where a key is missing.

    `micro_batch_size: auto` equals any value, because it resolves to one.
    """
    a, b = values_by_key(one), values_by_key(other)
    return {
        key: (a.get(key), b.get(key))
        for key in sorted(a | b)
        if a.get(key) != b.get(key)
        and not is_neutral(key)
        and not (key == "micro_batch_size" and "auto" in (a.get(key), b.get(key)))
    }


def values_by_key(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `differences` compares: every value, and the order of the keys where it matters."""
    return flatten(config) | _key_orders(config, "")


def is_after_training(key: str) -> bool:
    """Whether a key affects only the test at the end of a run."""
    return key in _AFTER_TRAINING or key.startswith("data.test.")


def is_idle_interval(key: str, flat_config: Mapping[str, Any]) -> bool:
    """Whether a key is an interval that changes no weights: how often a run is logged or saved.

    Each `patience` counts evaluations, so `eval_every` is idle only if none is set.
    """
    has_patience = any(name.endswith("patience") and value is not None for name, value in flat_config.items())
    return key in INTERVALS and not (key == "eval_every" and has_patience)


def is_neutral(key: str) -> bool:
    """Whether a key, or a whole group, has no effect on what a run computes.

    >>> is_neutral("tracker.mode"), is_neutral("tracker@trackers.tensorboard"), is_neutral("seed")
    (True, True, False)
    """
    return key in _NEUTRAL or (f"{key}.".startswith(_NEUTRAL_GROUPS) and key not in _NOT_NEUTRAL)


def unasked_differences(configs: Sequence[Mapping[str, Any]], asked: Collection[str]) -> dict[str, list[Any]]:
    """Return the keys that all flat configs have, and in which they differ although nobody asked: with their values.

    Such as the default of a weight decay, which another optimizer changes too. Keys that repeat a run, or change no
    result, are left out.

    >>> unasked_differences([{"lr": 1, "wd": 0.1}, {"lr": 2, "wd": 0}], asked=["lr"])
    {'wd': [0.1, 0]}
    """
    differing = dict[str, list[Any]]()
    for key in sorted(set[str].intersection(*map(set[str], configs)) if configs else ()):
        values = [config[key] for config in configs]
        is_idle = all(is_idle_interval(key, config) for config in configs)
        is_left_out = is_idle or is_neutral(key) or is_after_training(key) or key.endswith("_target_")
        if (
            not is_left_out
            and key not in (*asked, *REPETITIONS)
            and any(value != values[0] for value in values)
        ):
            differing[key] = values
    return differing


def _key_orders(config: Mapping[str, Any], prefix: str) -> dict[str, list[str]]:
    """Return the key order of the mappings whose order matters.

    The first matching pattern wins, and the schedules of `sequential` run one after the other.
    """
    orders: dict[str, list[str]] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            if key in ("patterns", "schedules") and len(value) > 1:
                orders[f"{prefix}{key} in this order"] = list(value)
            orders |= _key_orders(value, f"{prefix}{key}.")
    return orders


def group_choices(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen option of each group, `{"optimizer": "adamw", ...}`.

    Hydra's own groups are left out, and `sweep`, because a grid belongs to no single run.
    """
    return {g: choices[g] for g in sorted(choices) if g != "sweep" and not g.startswith("hydra/")}


def redacted_yaml(config: Container | Mapping[str, Any]) -> str:
    """Return a config as YAML with unresolved interpolations and without secrets, as `OmegaConf.to_yaml` writes it.

    That of a plain mapping takes a third of the time, because no config is made of it. The jobs of a sweep share the
    texts of most keys.
    """
    if isinstance(config, Container):
        config = cast("Mapping[str, Any]", OmegaConf.to_container(config, resolve=False, enum_to_str=True))
    public = redacted(config)
    if not isinstance(public, dict) or not public:
        return _yaml(pickle.dumps(public))
    parts = cast("dict[str, Any]", public)
    outer, inner = next(iter(parts.items()))
    if len(parts) > 1 or not isinstance(inner, dict) or not inner:
        return "".join(_yaml(pickle.dumps({key: value})) for key, value in parts.items())
    below = cast("dict[str, Any]", inner)  # of `hydra`, of which a job changes a few keys
    texts = [_yaml(pickle.dumps({outer: {key: value}})) for key, value in below.items()]
    return "".join([texts[0], *(text.partition("\n")[2] for text in texts[1:])])


@lru_cache(1000)
def _yaml(pickled: bytes) -> str:
    value = pickle.loads(pickled)
    text = _dump(value, _FastDumper)
    # libyaml escapes more characters in double quotes, and breaks lines there at other places.
    return text if text.isascii() and '"' not in text else _dump(value, _Dumper)


def _dump(value: Any, dumper: type[yaml.Dumper]) -> str:
    return yaml.dump(value, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=dumper)


@lru_cache(10_000)  # the jobs of a sweep have most texts in common
def _needs_quotes(text: str) -> bool:
    """Return whether YAML or OmegaConf reads a text as another type without quotes."""
    if text.lower() in _BOOLEANS and text in (text.lower(), text.upper(), text.capitalize()):
        return True
    for kind in (int, float):
        with suppress(ValueError):
            kind(text)
            return True
    return False


_BOOLEANS = ("y", "n", "yes", "no", "true", "false", "on", "off")


_TEXT = "tag:yaml.org,2002:str"
_FastBase: type[yaml.Dumper] = getattr(yaml, "CDumper", yaml.Dumper)


class _Dumper(yaml.Dumper):
    """Writes YAML as OmegaConf does."""


class _FastDumper(_FastBase):
    """Writes YAML by libyaml, if that is installed."""


for _dumper in (_Dumper, _FastDumper):
    _dumper.add_representer(str, lambda d, t: d.represent_scalar(_TEXT, t, "'" if _needs_quotes(t) else None))


@cache
def key_tables() -> Mapping[str, Mapping[str, Any]]:
    """Return the tables in config_keys.yaml of all conf folders; that of Hydrant's own describes them."""
    tables: dict[str, dict[str, Any]] = {"": {}, "removed": {}, "checked": {}}
    for folder in hydrants_dirs():
        for name, table in content_of(folder / "config_keys.yaml").items():
            tables.setdefault(name, {}).update(table)
    return tables


def with_added_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved config with the keys that were added since, as they were before, without those removed since."""
    return dict(key_tables()[""]) | _completed(config)


def _completed(node: Mapping[str, Any]) -> dict[str, Any]:
    target = str(node.get("_target_"))
    kept = node.keys() - key_tables()["removed"].get(target, ())
    return dict(key_tables().get(target, {})) | {
        key: _completed(value) if isinstance(value, dict) else value
        for key, value in node.items()
        if key in kept
    }
