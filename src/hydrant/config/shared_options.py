"""Patch Hydra 1.3.8 so that configs with the same options share what Hydra makes of the config files.

Plain Hydra reads and merges all files anew for each job of a sweep, also where jobs differ only in values such as
`optimizer.lr`. That takes most of the time in which it composes a job. The patch keeps the defaults list and the merged
files of each choice of options; Hydra then applies the values to a copy of them.

tests/config/test_shared_options.py compares the configs with those of plain Hydra.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig


@dataclass
class _Files:
    """What Hydra makes of the config files for a choice of options."""

    repository: CachingConfigRepository
    defaults: DefaultsList | None = None
    merged: bytes | None = None  # a pickled DictConfig


@contextmanager
def share_options() -> Generator[None]:
    """Make Hydra read and merge the files of each choice of options once, even if they change in between."""
    repositories = dict[
        Any, CachingConfigRepository
    ]()  # by search path; they say which overrides choose options
    known, current = dict[Any, _Files](), dict[str, Any]()
    load_one = ConfigLoaderImpl._load_configuration_impl
    parse_one = ConfigLoaderImpl._parse_overrides_and_create_caching_repo
    make_one = config_loader_impl.create_defaults_list
    merge_one = ConfigLoaderImpl._compose_config_from_defaults_list

    def load(self: ConfigLoaderImpl, **arguments: Any) -> DictConfig:
        current["mode"] = arguments["run_mode"]
        return load_one(self, **arguments)

    def parse(
        self: ConfigLoaderImpl, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed = OverridesParser.create().parse_overrides(overrides)
        path = [config_name, *(o.input_line for o in parsed if o.get_key_element() == "hydra.searchpath")]
        if str(path) not in repositories:
            repositories[str(path)] = parse_one(self, config_name, overrides)[1]
        exists = repositories[str(path)].group_exists
        chosen = [o.input_line for o in parsed if exists(o.key_or_group)]
        key = str((current.get("mode"), path, chosen))
        if key not in known:
            known[key] = _Files(parse_one(self, config_name, overrides)[1])
        current["files"] = known[key]
        return parsed, known[key].repository

    def make_defaults(
        repo: IConfigRepository, config_name: str | None, overrides_list: list[Override], **options: Any
    ) -> DefaultsList:
        files: _Files = current["files"]
        if files.defaults is None:
            files.defaults = make_one(repo, config_name, overrides_list, **options)
        values = Overrides(repo, overrides_list).config_overrides
        return dataclasses.replace(files.defaults, config_overrides=values)

    def merge(self: ConfigLoaderImpl, defaults: Sequence[Any], repo: IConfigRepository) -> DictConfig:
        files: _Files = current["files"]
        if files.merged is None:
            files.merged = pickle.dumps(merge_one(self, list(defaults), repo))
        return pickle.loads(files.merged)

    with (
        patch.object(ConfigLoaderImpl, "_load_configuration_impl", load),
        patch.object(ConfigLoaderImpl, "_parse_overrides_and_create_caching_repo", parse),
        patch.object(config_loader_impl, "create_defaults_list", make_defaults),
        patch.object(ConfigLoaderImpl, "_compose_config_from_defaults_list", merge),
    ):
        yield
