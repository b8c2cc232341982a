"""Keys of a config that an earlier version lacked."""

from collections.abc import Mapping
from itertools import product
from typing import Any

_MISSING_WORDS = sorted(
    {
        "".join(word)
        for text in ("na", "n/a", "nan", "null", "none")
        for word in product(*zip(text, text.upper(), strict=True))
    }
)
"""Words of missing cells in a CSV file before they were named: these, in capitals or not."""

_ADDED_KEYS: dict[str, dict[str, Any]] = {
    "": {
        "cudnn_benchmark": "auto",
        "fold": 0,
        "fold_seed": 0,
        "folds": None,
        "hooks": {},
        "label_noise": 0.0,
        "label_noise_seed": 0,
        "limit_test_samples": None,
        "memory_format": "auto",
        "mup": None,
        "tags": [],
        "notes": None,
        "test_at_end": False,
        "trackers": {},
    },
    "hydrant.data.cifar10": {"split_seed": 0, "val_ratio": 0.0},
    "hydrant.data.cifar100": {"split_seed": 0, "val_ratio": 0.0},
    "hydrant.data.csv": {"decimal": ".", "extra_val": {}, "missing_words": _MISSING_WORDS},
    "hydrant.data.dataset": {"class_names": None, "extra_val": {}, "read": None, "test": None},
    "hydrant.data.digits": {"test_ratio": 0.0},
    "hydrant.data.hugging_face": {"extra_val": {}, "split_seed": 0, "val_ratio": 0.2},
    "hydrant.data.image_folder": {"decoder": "pillow", "extra_val": {}, "test_dir": None},
    "hydrant.data.memmap": {"extra_val": {}},
    "hydrant.data.mnist": {"split_seed": 0, "val_ratio": 0.0, "variant": "mnist"},
    "hydrant.data.stream": {"divided": False, "extra_val": {}},
    "hydrant.data.tensors": {"class_names": None, "extra_val": {}, "test": None},
    "hydrant.optimizers.MuonWithAdamW": {
        "dtype": "auto",
        "fused": None,
        "ns_coefficients": [3.4445, -4.775, 2.0315],
    },
    "hydrant.optimizers.NorMuonWithAdamW": {"dtype": "auto"},
    "hydrant.optimizers.timm_optimizer": {"dtype": "auto"},
    "hydrant.schedules.wsd": {"power": 0.5},
    "hydrant.tasks.Classification": {
        "multi_label": False,
        "class_weights": None,
        "ignore_index": None,
        "class_dim": 1,
        "loss": None,
    },
}
"""Keys that runs of earlier versions lack, at the top level ("") and of a target, with the defaults of today."""


def with_added_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved config with the keys that were added since, and the values that they had before they existed."""
    return _ADDED_KEYS[""] | _completed(config)


def _completed(node: Mapping[str, Any]) -> dict[str, Any]:
    added = _ADDED_KEYS.get(str(node.get("_target_")), {})
    return added | {
        key: _completed(value) if isinstance(value, dict) else value for key, value in node.items()
    }


def flat_with_added_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for a config of dotted keys, as `flatten` returns it."""
    added = dict(_ADDED_KEYS[""])
    for key, target in config.items():
        group, _, name = key.rpartition(".")
        if name == "_target_":
            added |= {f"{group}.{name}": value for name, value in _ADDED_KEYS.get(str(target), {}).items()}
    return added | dict(config)
