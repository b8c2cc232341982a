"""Configs as flat key-value pairs, their differences, and keys that an earlier version lacked or alone had.

The folder names of a sweep's jobs, made from their overrides, and the folders that earlier commands gave them. The
OmegaConf resolvers that configs use, such as `${run_folder:outputs,${name}}`.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any

import omegaconf
from omegaconf import DictConfig, OmegaConf

from hydrant.config.groups import INTERVALS, REPETITIONS, check_name, content_of, hydrants_dirs
from hydrant.files.redaction import HIDDEN, redacted
from hydrant.imports import paused_gc
from hydrant.installation import entry_points

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
    if key != "eval_every":
        return key in INTERVALS
    return all(value is None for name, value in flat_config.items() if name.endswith("patience"))


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


_NO_JOBS: Mapping[str, Sequence[str]] = MappingProxyType({})

_MAX_BYTES = 120

_Identity = tuple[str, ...]
"""The identity of a job: its overrides that have an effect on the result, sorted, without secrets."""


class JobFolders:
    """Gives each job of a sweep the folder with its overrides, else a new folder, which `job_slug` names.

    So a job keeps its folder if a later command varies other keys, and no job gets the folder of another one.

    Args:
        swept: the keys that the sweep varies.
        existing: the overrides of the job in each folder of the sweep.
    """

    def __init__(self, swept: Collection[str] = (), existing: Mapping[str, Sequence[str]] = _NO_JOBS) -> None:
        self._swept = swept
        self._jobs = {name: _identity(_words(words, swept), name[-9:]) for name, words in existing.items()}
        self._names: dict[_Identity, list[str]] = {}
        for name, job in self._jobs.items():
            self._names.setdefault(job, []).append(name)

    def name_of(self, overrides: Sequence[str]) -> str:
        """Return the folder name of the job with these overrides."""
        words = _words(overrides, self._swept)
        job, slug = _identity(words, _digest(words)), job_slug(overrides, self._swept)
        names = self._names.setdefault(job, [])
        if len(names) == 1:
            return names[0]
        if self._jobs.setdefault(slug, job) != job:  # the overrides of another job are written alike
            slug = f"{shortened(slug, _MAX_BYTES - 10)}{_digest(words)}"
            self._jobs[slug] = job
        if slug not in names:
            names.append(slug)
        return slug


def job_slug(overrides: Sequence[str], swept: Collection[str] = ()) -> str:
    """Return a folder name made from the overrides of a job: first those that the sweep varies.

    Secrets only enter a hash. Keys that have no effect on the result appear only if they are in `swept`.

    >>> job_slug(["data=mnist", "name=study", "tracker=local", "optimizer.lr=1e-3"], ["optimizer.lr"])
    'optimizer.lr-1e-3_data-mnist'
    """
    words = _words(overrides, swept)
    if not words:
        return "defaults"
    ordered = redacted(sorted(words, key=lambda word: _key(word) not in swept))
    text = "_".join(map(_written, words))
    slug, is_whole = _as_name(ordered), _as_name(redacted(words)) == text.replace("=", "-")
    if is_whole and len(slug.encode()) <= _MAX_BYTES:
        return slug
    short = _as_name([re.sub(r"^[^=]*\.", "", word) for word in ordered])
    return f"{shortened(short, _MAX_BYTES - 10)}{_digest(words)}"


def _words(overrides: Sequence[str], swept: Collection[str]) -> list[str]:
    """Return the overrides that make the job, sorted. `+key=1` and `key=1` give the same config, `~key` does not."""
    words = (override.lstrip("+") for override in overrides)
    return sorted(word for word in words if _key(word) in swept or not _is_left_out(_key(word)))


def _key(word: str) -> str:
    return word.lstrip("~").partition("=")[0]


def _is_left_out(key: str) -> bool:
    return key == "sweep" or is_neutral(key)


def _identity(words: Sequence[str], digest: str) -> _Identity:
    """Return the identity of a job. The hash at the end of folder names separates jobs that differ in a secret."""
    public = tuple(redacted(list(words)))
    return (*public, digest) if any(HIDDEN in word for word in public) else public


def _digest(words: Sequence[str]) -> str:
    return f"-{hashlib.sha1('_'.join(words).encode()).hexdigest()[:8]}"


def _written(word: str) -> str:
    return f"without-{word[1:]}" if word.startswith("~") else word


def _as_name(words: Sequence[str]) -> str:
    return re.sub(r"[^\w.%+-]", "-", "_".join(map(_written, words)))


def shortened(name: str, num_bytes: int) -> str:
    """Return the beginning of a file name. File systems count bytes, and a character may have four.

    >>> shortened("größer", 4)
    'grö'
    """
    return name.encode()[:num_bytes].decode(errors="ignore")


def register_resolvers(folders: JobFolders | None = None) -> None:
    """Register the resolvers, replacing earlier ones. `folders`: those of the sweep that begins."""
    for function in (run_folder, largest, unless):
        _register(function.__name__, function)
    for name, point in entry_points("hydrant.resolvers").items():  # such as those that read files of data
        _register(name, _imported(point))
    _register("job_slug", (folders or JobFolders()).name_of)


def _register(name: str, function: Callable[..., Any]) -> None:
    if omegaconf.__version__.startswith("2.3."):
        OmegaConf.register_new_resolver(name, function, replace=True)
    else:  # would also check the annotations
        register: Any = OmegaConf.register_resolver
        register(name, function, replace=True, annotation_validation="off")


def _imported(point: EntryPoint) -> Callable[..., Any]:
    """Return a resolver that imports its function when it is first used, and passes its node's parent as `_parent_`."""

    def resolve(*arguments: Any, _parent_: DictConfig) -> Any:
        with paused_gc():
            function = point.load()
        return function(*arguments, _parent_=_parent_)

    return resolve


def begin_run() -> None:
    """Let the next run without a name have a folder of its own."""
    _start_time.cache_clear()


def run_folder(root: str, name: str | None) -> str:
    """Return `outputs/lr_study` for a named run, else `outputs/<date>/<time>`."""
    if name is None:
        return f"{root}/{_start_time()}"
    check_name(str(name))
    return f"{root}/{name}"


@lru_cache
def _start_time() -> str:
    # Milliseconds, because a shell loop starts several runs in one second.
    return datetime.now().strftime("%Y-%m-%d/%H-%M-%S.%f")[:-3]


def unless(other: Any, default: Any) -> Any:
    """Return the default of a key that another key excludes: null if the other one has a value.

    `end_ratio: ${unless:${.gamma},0.01}` is 0.01, but null if the user gives gamma.
    """
    return default if other is None else None


def largest(value: Any) -> Any:
    """Return the largest of the numbers that a key takes one after the other; another value as it is.

    >>> largest({0: 64, 1000: 128}), largest(64)
    (128, 64)
    """
    if not isinstance(value, Mapping):
        return value
    return max((number for number in value.values() if isinstance(number, int)), default=None)
