"""Keys of a config that an earlier version lacked, or alone had, from the tables in config_keys.yaml."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydrant.files.bounded_yaml import load_config


@cache
def added_keys() -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of config_keys.yaml, which describes them."""
    return load_config(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def with_added_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved config with the keys that were added since, as they were before, without those removed since."""
    return dict(added_keys()[""]) | _completed(config)


def _completed(node: Mapping[str, Any]) -> dict[str, Any]:
    target = str(node.get("_target_"))
    kept = node.keys() - added_keys()["removed"].get(target, ())
    return dict(added_keys().get(target, {})) | {
        key: _completed(value) if isinstance(value, dict) else value
        for key, value in node.items()
        if key in kept
    }


def flat_with_added_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for a config of dotted keys, as `flatten` returns it."""
    added, removed = dict(added_keys()[""]), set[str]()
    for key, target in config.items():
        group, _, name = key.rpartition(".")
        if name == "_target_":
            added |= {f"{group}.{name}": value for name, value in added_keys().get(str(target), {}).items()}
            removed |= {f"{group}.{name}" for name in added_keys()["removed"].get(str(target), ())}
    return {key: value for key, value in (added | dict(config)).items() if key not in removed}
