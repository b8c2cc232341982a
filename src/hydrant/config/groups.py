"""The keys of a run's config, and its groups: the conf folders, their options, and three special kinds of these.

The keys of a group are not listed: its target's signature decides them. Those of some groups lie elsewhere than below
the name of the group. Of a grid in conf/sweep, only the settings of Hydra reach the sweep. A group may hold an object
that the user passes from Python.
"""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Interval

from hydrant.errors import ConfigError
from hydrant.files.on_disk import read_marked
from hydrant.files.plain_values import NotNegativeInt, Positive, PositiveInt, Ratio
from hydrant.files.read_file import load_config, reason_of
from hydrant.installation import entry_points, named_packages


def conf_dir() -> Path:
    """Return Hydrant's own conf folder: inside the installed package, or at the root of the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def user_conf_dir() -> Path | None:
    """Return the user's conf folder, `$HYDRANT_CONF` or `./conf`; None if there is none.

    Its options take precedence over Hydrant's.

    Raises:
        ConfigError: HYDRANT_CONF is not a folder.
    """
    variable = os.environ.get("HYDRANT_CONF")
    folder = Path(variable or "conf").resolve()
    if variable and not folder.is_dir():
        message = f"{variable} is not a folder"
        raise ConfigError("HYDRANT_CONF", message, remedy="set it to your conf folder, or unset it")
    return folder if folder.is_dir() and folder != conf_dir().resolve() else None


@functools.cache
def hydrants_dirs() -> list[Path]:
    """Return Hydrant's own conf folder, then those of its extensions: they are one for Hydra.

    An extension names its package by an entry point of the group `hydrant.parts`; its options are in `conf` there.
    """
    specs = map(find_spec, named_packages("hydrant.parts"))
    packages = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return [conf_dir(), *(Path(package, "conf") for package in packages)]


def conf_dirs() -> list[Path]:
    """Return the conf folders, in the order of their precedence."""
    return [folder for folder in (user_conf_dir(), *hydrants_dirs()) if folder]


def option_path(group: str, name: str) -> Path:
    """Return the file of an option, which may be missing: of the user's conf folder else Hydrant's or an extension's.

    >>> option_path("optimizer", "adamw").relative_to(conf_dir()).as_posix()
    'optimizer/adamw.yaml'
    """
    paths = [folder / group / f"{name}.yaml" for folder in conf_dirs()]
    return next((path for path in paths if path.is_file()), paths[-1])


def group_options() -> dict[str, list[str]]:
    """Return every config group with its options, from the user's and Hydrant's conf folders."""
    options: dict[str, set[str]] = {}
    for folder in conf_dirs():
        read = _options_in if folder in hydrants_dirs() else _options_in.__wrapped__  # a user's may change
        for group, names in read(folder).items():
            options.setdefault(group, set()).update(names)
    return {group: sorted(options[group]) for group in sorted(options)}


@functools.cache
def _options_in(folder: Path) -> dict[str, set[str]]:
    options: dict[str, set[str]] = {}
    for path, _, names in os.walk(folder):  # Path.rglob takes five times as long
        group = os.path.relpath(path, folder).replace(os.sep, "/")
        # `_frame.yaml` is only in the defaults of other options.
        stems = {name[:-5] for name in names if name.endswith(".yaml") and not name.startswith("_")}
        if stems and group not in (".", "wandb_sweep"):
            options[group] = stems
    return options


def options_with(group: str, key: str) -> list[str]:
    """Return the options of a group that have a key, without those that only inherit it from another one of these.

    >>> options_with("averaging", "decay"), options_with("mixing", "decay")
    (['ema'], [])
    """
    # Read once: options include each other.
    content_of_option = functools.cache(functools.partial(option_content, group))

    def has_key(option: str) -> bool:
        content = content_of_option(option)
        is_own = key in content and key != "defaults" and not key.startswith("_")
        return is_own or any(map(has_key, included_options(content)))

    having = [option for option in group_options().get(group, []) if has_key(option)]
    return [option for option in having if not {*included_options(content_of_option(option))} & {*having}]


def own_words(key: str, value: str, options: Sequence[str] | None = None, missing: str = "") -> str | None:
    """Return what to write instead of `key=value`, by what packages know of the words of others; else None.

    Args:
        options: of the group `key`, which lacks the value.
        missing: the node at the key or above it that the config lacks.
    """
    advisers = (point.load() for point in entry_points("hydrant.words").values())
    return next(filter(None, (advise(key, value, options, missing) for advise in advisers)), None)


def included_options(content: Mapping[str, Any]) -> list[str]:
    """Return the options that the defaults list of an option includes."""
    return [item for item in content.get("defaults", []) if isinstance(item, str) and item != "_self_"]


def option_content(group: str, option: str) -> Mapping[str, Any]:
    """Return what is in the file of an option; nothing if there is none."""
    return content_of(option_path(group, option))


def option_fields(group: str, option: str) -> dict[str, Any]:
    """Return the fields of an option with their defaults, also those from the options that it includes.

    >>> option_fields("scheduler", "cosine")["warmup"]
    0
    """
    content, fields = option_content(group, option), dict[str, Any]()
    for name in included_options(content):
        fields |= option_fields(group, name)
    return fields | {key: value for key, value in content.items() if key != "defaults"}


def content_of(file: Path) -> dict[str, Any]:
    """Return what is in a config file; nothing if there is no such file.

    Raises:
        ConfigError: it is no YAML.
    """
    try:
        return (file.is_file() and load_config(read_marked(file, errors="replace"))) or {}
    except yaml.YAMLError as error:
        raise ConfigError("", f"{file} is no YAML ({reason_of(error)})") from error


_PLACES = {"experiment": "_global_", "debug": "_global_", "sweep": "_global_", "hook": "hooks.{name}"}
"""Group -> where the keys of its options lie, unless `# @package` in the file of an option says it."""


def place_of(config_path: str) -> str | None:
    """Return where the keys of an option such as `hook/mine` lie, if that is not below the name of its group.

    >>> place_of("hook/freeze"), place_of("model/mlp")
    ('hooks.freeze', None)
    """
    group, _, name = config_path.removesuffix(".yaml").rpartition("/")
    place = _PLACES.get(group.partition("/")[0])
    return place and place.format(name=name)


def check_placed(config: Mapping[str, Any]) -> None:
    """Check that no value stands at the name of a group whose options place their keys elsewhere.

    Raises:
        ConfigError: Names the group.
    """
    for group in _PLACES.keys() & config.keys():
        chosen = config[group] if isinstance(config[group], (str, list)) else "<option>"
        remedy = f"choose an option of it: {in_defaults(group, chosen)}"
        raise ConfigError(group, "is a config group", remedy=remedy)


def check_grid_file(name: str | None) -> None:
    """Check that a grid sets nothing but Hydra's settings, because its jobs are composed without it.

    Raises:
        ConfigError: Names the file and what it sets.
    """
    file = option_path("sweep", name or "")
    content = content_of(file)
    chosen = [key for item in content.get("defaults", []) if isinstance(item, dict) for key in item]
    keys = [key.removeprefix("override ").lstrip("/") for key in chosen] + [*content.keys() - {"defaults"}]
    if stray_keys := sorted(key for key in keys if key.partition("/")[0] != "hydra"):
        message = f"{file} sets {stray_keys[0]}, which does not reach the jobs"
        remedy = "write it below hydra.sweeper.params, also if it has one value"
        raise ConfigError("sweep", message, remedy=remedy)


def in_defaults(group: str, options: Any) -> str:
    """Return how to choose options of a group, on the command line and in a config file.

    >>> in_defaults("hook", ["a", "b"])
    'hook=[a,b], or in the defaults list of a config file: override /hook: [a,b]'
    """
    text = f"[{','.join(map(str, options))}]" if isinstance(options, list) else str(options)
    return f"{group}={text}, or in the defaults list of a config file: override /{group}: {text}"


PASSED_PREFIX = "hydrant.training.passed_"
"""The start of their `_target_`; the name of the config group follows."""


def is_passed(config: Mapping[str, Any], group: str) -> bool:
    """Whether a group of a config is an object that was passed from Python."""
    return str(config[group].get("_target_")).startswith(PASSED_PREFIX)


def check_passed_again(changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Check that a config passes the objects that a saved config has.

    Args:
        changes: the keys in which they differ, with the value in the saved config and in this one.

    Raises:
        ConfigError: an object is missing.
    """
    targets = {key: saved for key, (saved, _) in changes.items() if key.endswith("._target_")}
    groups = [
        key.removesuffix("._target_")
        for key, saved in targets.items()
        if str(saved).startswith(PASSED_PREFIX)
    ]
    if groups:
        raise not_passed({group: changes[f"{group}.type"][0] for group in groups})


def not_passed(class_names: Mapping[str, str]) -> ConfigError:
    """Return the error for a run whose objects of these classes, by config group, are not there."""
    words = ", ".join(f"{group}=..." for group in class_names)
    objects, them = ("an object", "it") if len(class_names) == 1 else ("objects", "them")
    return ConfigError(
        next(iter(class_names)),
        f"this run was trained with {objects} of {', '.join(class_names.values())}, passed from Python",
        remedy=f"only Python can pass {them} again: hydrant.train(config, {words}) continues the run, "
        f"hydrant.load_run(folder, {words}) opens it",
    )


@dataclass(frozen=True)
class BestMetric:
    """The evaluation metric that decides which checkpoint is the best."""

    metric: str
    mode: Literal["auto", "max", "min"]


@dataclass(frozen=True)
class ParamGroups:
    """The division of the parameters into the optimizer's param groups."""

    no_decay: bool
    layer_decay: float | None
    layer_decay_min_scale: float
    patterns: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class OptimizerSettings:
    """The settings of an optimizer: top-level for a single one, else under `optimizers.<name>`."""

    optimizer: Any
    scheduler: Any
    schedules: dict[str, Any]
    param_groups: ParamGroups
    lr_scaling: Literal["linear", "sqrt"] | None
    lr_base_size: PositiveInt
    mup: Literal["adam", "sgd", "muon", "spectral"] | None
    max_grad_norm: Positive | None
    max_grad_value: Positive | None
    agc: Positive | None


@dataclass(frozen=True)
class TrainConfig(OptimizerSettings):
    """The keys of `conf/train.yaml` except `defaults` and `hydra`. That file explains each key and holds all defaults.

    Not a structured config: OmegaConf would turn 2 into `true` and 7 into `'7'`. `check` reads the type hints.
    Durations have the type `Any`: 500 (updates), 10ep, 64000sa, 10Mtok, 1e15flop, 5min or 5% (of the run).
    """

    name: str | None
    claim: str | None
    tags: list[str]
    notes: str | None
    seed: NotNegativeInt
    duration: Any
    global_batch_size: PositiveInt | Literal["all"] | dict[str, PositiveInt]
    micro_batch_size: PositiveInt | Literal["auto"] | None
    eval_batch_size: PositiveInt
    log_every: Any
    eval_every: Any
    save_every: Any
    histogram_every: Any
    pictures: Literal["end", "evaluation"] | None
    save_async: bool
    keep_last: PositiveInt
    keep_best: NotNegativeInt
    keep_every: Any
    best: BestMetric
    patience: PositiveInt | None
    test_at_end: bool
    optimizers: dict[str, Any]
    update_order: list[list[str]]
    skip_non_finite: bool
    max_skipped: NotNegativeInt
    limit_train_samples: PositiveInt | None
    limit_val_samples: PositiveInt | None
    limit_test_samples: PositiveInt | None
    label_noise: Ratio
    label_noise_seed: NotNegativeInt
    folds: Annotated[int, Ge(2)] | None
    fold: NotNegativeInt
    fold_seed: NotNegativeInt
    deterministic: bool
    cudnn_benchmark: bool | Literal["auto"]
    memory_format: Literal["auto", "contiguous_format", "channels_last"]
    resume: Literal["auto"] | str | None
    resume_strict: bool
    init_from: str | None
    init_strict: bool
    allow_targets: list[str]
    hooks: dict[str, Any]
    data: Any
    model: Any
    task: Any
    precision: Any
    averaging: Any
    mixing: Any
    compile: Any
    parallel: Any
    profiler: Any
    tracker: Any
    trackers: dict[str, Any]


@dataclass(frozen=True)
class Ranks:
    """What every option of `parallel` has: the process that starts the ranks reads it."""

    num_processes: Annotated[int, Interval(ge=1, le=1024)]


@dataclass(frozen=True)
class NamedOptimizer(OptimizerSettings):
    """One entry of `optimizers`: the parts it trains, the losses it follows, and its own settings."""

    parts: list[str] | None
    losses: list[str] | None


def check_name(name: str) -> None:
    """Raise ConfigError if a run folder cannot have this name."""
    if not re.fullmatch(r"[^\W_][\w.-]*", name):
        remedy = "use letters, digits, '.', '_' and '-', and a letter or digit first"
        raise ConfigError("name", f"{name!r} is not a valid folder name", remedy=remedy)


INTERVALS = ("log_every", "eval_every", "save_every", "keep_every", "histogram_every")
"""How often a run is logged, evaluated and saved: durations, or null for never."""

REPETITIONS = ("seed", "label_noise_seed", "fold_seed", "fold", "data.split_seed", "data.samples_seed")
"""Keys that repeat an experiment: runs that differ only in them are compared as one setting."""

DURATIONS = ("duration", *INTERVALS)
"""Keys whose value is a duration."""

LISTED_GROUPS = ("hook",)
"""Groups of which a run may have several options: `hook=[freeze,stop_at]`."""

PARTIAL_GROUPS = ("task", "optimizer", "scheduler", "precision", "averaging", "mixing", "compile", "parallel",
                  "profiler", "tracker")  # fmt: skip
"""Groups whose options need `_partial_: true`, because the run adds arguments such as the model or the parameters."""

GROUPS = ("data", "model", *PARTIAL_GROUPS)
"""Groups of which every run has an option with a `_target_`."""
