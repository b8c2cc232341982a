"""Keys of a config that an earlier version lacked, and keys that another one leaves without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from hydrant.errors import shown

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
    "hydrant.data.csv": {"extra_val": {}},
    "hydrant.data.dataset": {"class_names": None, "extra_val": {}, "read": None, "test": None},
    "hydrant.data.digits": {"test_ratio": 0.0},
    "hydrant.data.hugging_face": {"extra_val": {}},
    "hydrant.data.image_folder": {"decoder": "pillow", "extra_val": {}, "test_dir": None},
    "hydrant.data.memmap": {"extra_val": {}},
    "hydrant.data.mnist": {"split_seed": 0, "val_ratio": 0.0, "variant": "mnist"},
    "hydrant.data.stream": {"extra_val": {}},
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


def _needs(key: str, remedy: str = "") -> Callable[[Mapping[str, Any], bool], str]:
    """Return the reason of a key that has an effect only together with another key."""
    *groups, name = key.split(".")

    def reason(config: Mapping[str, Any], _: bool) -> str:
        value = reduce(getitem, groups, config)[name]
        return "" if value else f"{key} is {shown(value)}{remedy}"

    return reason


def _beside_file(split: str) -> Callable[[Mapping[str, Any], bool], str]:
    """Return the reason of a ratio that is not cut, because the split is a file of its own."""
    return lambda config, _: f"data.{split} gives these samples" if config["data"].get(split) else ""


def _of_other_loss(loss: str) -> Callable[[Mapping[str, Any], bool], str]:
    def reason(config: Mapping[str, Any], _: bool) -> str:
        chosen = config["task"].get("loss", loss)
        return "" if chosen == loss else f"task.loss is {chosen if isinstance(chosen, str) else 'your own'}"

    return reason


_REASONS: Mapping[str, Callable[[Mapping[str, Any], bool], str]] = {
    "limit_test_samples": lambda _, has_test: "" if has_test else "the data have no test split",
    "label_noise_seed": _needs("label_noise", "; give label_noise=0.15"),
    "fold_seed": _needs("folds", "; give folds=5"),
    "lr_base_size": _needs("lr_scaling", "; give lr_scaling=linear"),
    "init_strict": _needs("init_from"),
    "keep_last": _needs("save_every", "; checkpoints are written only if the run is interrupted"),
    "keep_best": _needs("save_every", "; checkpoints are written only if the run is interrupted"),
    "keep_every": _needs("save_every", "; checkpoints are written only if the run is interrupted"),
    "patience": _needs("eval_every", "; evaluations are counted"),
    "param_groups.layer_decay_min_scale": _needs("param_groups.layer_decay"),
    "data.val_ratio": _beside_file("val"),
    "data.test_ratio": _beside_file("test"),
    "task.delta": _of_other_loss("huber"),
    "task.temperature": _of_other_loss("kl"),
}


def idle_keys(overrides: Sequence[str], config: Mapping[str, Any], *, has_test: bool) -> Iterator[str]:
    """Yield a sentence for each key of the command line that has no effect in this config.

    Args:
        overrides: of the command line.
        config: the checked config.
        has_test: whether the data have a test split.

    >>> list(idle_keys(["limit_test_samples=5", "seed=1"], {"limit_test_samples": 5}, has_test=False))
    ['limit_test_samples has no effect, because the data have no test split']
    """
    written = {word.lstrip("+").partition("=")[0]: word for word in overrides}
    for key, reason_of in _REASONS.items():
        is_null = written.get(key, "").endswith("=null")
        if key in written and not is_null and (reason := reason_of(config, has_test)):
            yield f"{key} has no effect, because {reason}"
