"""The grid: the cells that the words of a command line make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydrant.config import check, combinations, compose, uncompiled
from hydrant.config.messages import HYDRA_ERRORS, explain
from hydrant.errors import ConfigError, HydrantError
from hydrant.runs import choices_in

_ALWAYS = ("precision", "compile")
"""Keys that are axes also where they have one value: they say what a cell's baseline is."""


@dataclass(frozen=True)
class Planned:
    """A cell before it is measured."""

    labels: Mapping[str, str]  # {"precision": "bf16", "compile": "default"}: its place on every axis it has
    config: Mapping[str, Any] | HydrantError  # composed and checked, or why there is none

    @property
    def baseline(self) -> Mapping[str, str]:
        """The labels of the same cell eager."""
        return _eager(self.labels)


def completed(words: Sequence[str], *, on_gpu: bool) -> list[str]:
    """The words, after those for what they leave open."""
    given = choices_in(words)
    defaults = {
        "precision": "fp32,tf32,bf16" if on_gpu else "fp32,bf16",
        "compile": "eager,default,blocks" + (",reduce_overhead,max_autotune" if on_gpu else ""),
    }
    if not {"experiment", "data", "model", "task"}.intersection(given):  # else the question is another one
        defaults = {"experiment": "vit_fake" if on_gpu else "vit_tiny_fake"} | defaults
    return [*(f"{key}={values}" for key, values in defaults.items() if key not in given), *words]


def plan(words: Sequence[str]) -> list[Planned]:
    """Every combination of the values given, each once, and before those of a kind their eager cell.

    Raises:
        ConfigError: the words cannot be read, or concern what a grid decides itself.
    """
    if "compile.cache_dir" in choices_in(words):
        told = "each cell has an empty folder of its own, so that it compiles cold first; leave it out"
        raise ConfigError("compile.cache_dir", told)
    own = [word for word in words if _group(word) != "tracker"]  # no cell has one
    combos = combinations([*own, "tracker=local"])
    axes = _axes([choices_in(combo) for combo in combos])
    cells: dict[tuple[str, ...], Planned] = {}
    for combo in combos:
        plain = tuple(word for word in combo if _group(word) != "compile")
        eager = (*plain, "compile=eager")
        is_eager = choices_in(combo)["compile"] == "eager"
        for overrides in (eager,) if is_eager else (eager, tuple(combo)):
            if overrides not in cells:
                choices = choices_in(overrides)
                labels = {axis: choices[axis] for axis in axes if axis in choices}
                cells[overrides] = Planned(
                    labels, _eager_config(plain) if overrides == eager else _checked(combo)
                )
    return list(cells.values())


def _axes(jobs: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys in which the jobs differ, after those that every grid has."""
    found = [key for key in jobs[0] if len({job[key] for job in jobs}) > 1]
    return [*_ALWAYS, *(key for key in found if key not in _ALWAYS)]


def _eager(labels: Mapping[str, str]) -> dict[str, str]:
    """A place in the grid, not compiled: there `compile.*` does not exist."""
    return {key: value for key, value in labels.items() if _group(key) != "compile"} | {"compile": "eager"}


def _group(word: str) -> str:
    return word.lstrip("+~").partition("=")[0].partition(".")[0]


def _eager_config(words: Sequence[str]) -> Mapping[str, Any] | HydrantError:
    config = _checked(words)
    return config if isinstance(config, HydrantError) else uncompiled(config)


def _checked(overrides: Sequence[str]) -> Mapping[str, Any] | HydrantError:
    try:
        return check(compose(overrides))
    except HydrantError as error:
        return error
    except HYDRA_ERRORS as error:
        return explain(error)
