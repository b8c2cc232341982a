"""Keys that the user has written although another key, or the data, leaves them without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from hydrant.errors import shown


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
