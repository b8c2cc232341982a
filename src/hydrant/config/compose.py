"""Where configs lie, and how one is composed without starting a run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from hydrant.config.arguments import check_overrides, check_sweep
from hydrant.config.messages import PLAIN_ERRORS, explain
from hydrant.config.plain import is_free
from hydrant.config.schema import check_name
from hydrant.config.targets import check_consent
from hydrant.errors import ConfigError
from hydrant.options import conf_dir
from hydrant.redaction import redacted

ENTRY = "train"
"""The primary config: conf/train.yaml."""


def register(swept: Collection[str] = ()) -> None:
    """Tell OmegaConf the resolvers, for a sweep over these keys; again is harmless."""
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("job_slug", partial(job_slug, swept=swept), replace=True)
    OmegaConf.register_new_resolver("class_folders", class_folders, replace=True)


def compose(overrides: Sequence[str], given: Sequence[str] | None = None) -> DictConfig:
    """The config that `train` would run with; `given` are those overrides that are the command line's: else all."""
    register()
    check_overrides(overrides)
    with _composing():
        config = hydra_compose(ENTRY, overrides=list(overrides))
    raw: Any = OmegaConf.to_container(config, resolve=False)
    check_consent(raw.get("allow_targets"), overrides if given is None else given)
    return config


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of the grid that several values for a key make: `precision=fp32,bf16`.

    Raises:
        ConfigError: an override that cannot be read, or has no values.
    """
    register()
    check_overrides(overrides)
    with _composing():
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(list(overrides))
        for override in parsed:
            check_sweep(override)
            if override.key_or_group == "sweep":
                raise ConfigError(
                    "sweep", "is of train --multirun; give the values here: optimizer=adamw,sgd"
                )
        return BasicSweeper.split_arguments(parsed, None)[0]


def uncompiled(config: Mapping[str, Any]) -> dict[str, Any]:
    """A checked config with compile=eager and nothing else changed, whatever its experiment says of `compile`."""
    eager = OmegaConf.to_container(compose(["compile=eager"]).compile)
    return {**config, "compile": eager}


@contextmanager
def _composing() -> Generator[None]:
    """Hydra, set up to compose.

    Raises:
        HydrantError: what Hydra raises beside its own errors, about the overrides.
    """
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir()), job_name=ENTRY):
        try:
            yield
        except PLAIN_ERRORS as error:
            raise explain(error) from error


def run_folder(root: str, name: str | None) -> str:
    """`outputs/lr_study` for a named run, else `outputs/<date>/<time>`."""
    if name is None:
        return f"{root}/{_started()}"
    check_name(str(name))
    return f"{root}/{name}"


@lru_cache
def _started() -> str:
    # Milliseconds, because a shell loop starts several runs in one second.
    return datetime.now().strftime("%Y-%m-%d/%H-%M-%S.%f")[:-3]


def job_slug(overrides: Sequence[str], swept: Collection[str] = ()) -> str:
    """A folder name for a job of a sweep: its overrides, whatever their order; secrets only as part of a hash.

    Keys that decide nothing of the result are in it only if the sweep is over them.

    >>> job_slug(["optimizer=adamw", "name=study", "tracker=local", "optimizer.lr=1e-3"])
    'optimizer.lr-1e-3_optimizer-adamw'
    """
    given = sorted(word for word in (o.lstrip("+~") for o in overrides) if _is_told(word, swept))
    if not given:
        return "defaults"
    own, text = redacted(given), "_".join(given)
    slug = re.sub(r"[^\w.%+-]", "-", "_".join(own))
    if len(slug) <= 120 and slug == text.replace("=", "-"):
        return slug
    short = re.sub(r"[^\w.%+-]", "-", "_".join(re.sub(r"^[^=]*\.", "", o) for o in own))
    return f"{short[:110]}-{hashlib.sha1(text.encode()).hexdigest()[:8]}"


def _is_told(override: str, swept: Collection[str]) -> bool:
    key = override.partition("=")[0]
    return key in swept or not (key == "sweep" or is_free(key))


def class_folders(path: str) -> int:
    """How many classes an image folder holds: its subfolders."""
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(
            "data.root", f"{folder} is no folder; it should hold one folder of images per class"
        )
    return sum(1 for entry in folder.iterdir() if entry.is_dir())
