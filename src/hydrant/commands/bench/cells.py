"""The cells of a grid: one config per combination of the swept values, and the eager baseline of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydrant.config.check import check
from hydrant.config.compose import combinations, compose, uncompiled
from hydrant.config.error_messages import HYDRA_ERRORS, explain
from hydrant.errors import ConfigError, HydrantError
from hydrant.runs.folder import choices_in

_FIXED_AXES = ("precision", "compile")
"""Keys that are axes even if they have one value, because they identify a cell's baseline."""


@dataclass(frozen=True)
class Cell:
    """One config to measure."""

    labels: Mapping[str, str]  # its value on every axis, {"precision": "bf16", "compile": "default"}
    config: Mapping[str, Any]  # composed and checked


@dataclass(frozen=True)
class PlannedCell:
    """A cell of the grid, which may be impossible."""

    labels: Mapping[str, str]
    config_or_error: Mapping[str, Any] | HydrantError  # composed and checked, or the reason why it cannot run

    @property
    def baseline(self) -> Mapping[str, str]:
        """The labels of its eager cell."""
        return _eager_labels(self.labels)


def with_defaults(overrides: Sequence[str], *, on_gpu: bool) -> list[str]:
    """Return the overrides, preceded by defaults for the axes that they leave out."""
    choices = choices_in(overrides)
    defaults = {
        "precision": "fp32,tf32,bf16" if on_gpu else "fp32,bf16",
        "compile": "eager,default,blocks" + (",reduce_overhead,max_autotune" if on_gpu else ""),
    }
    if choices.keys().isdisjoint({"experiment", "data", "model", "task"}):  # no choice of what to train
        defaults = {"experiment": "vit_fake" if on_gpu else "vit_tiny_fake"} | defaults
    return [*(f"{key}={values}" for key, values in defaults.items() if key not in choices), *overrides]


def plan_cells(overrides: Sequence[str]) -> list[PlannedCell]:
    """Return a cell for every combination of values and, before it, its eager cell. Each cell occurs once.

    Raises:
        ConfigError: the overrides cannot be read, or set a key that `bench` sets itself.
    """
    if "compile.cache_dir" in choices_in(overrides):
        message = (
            "each cell has its own empty folder, so that its first repeat compiles cold; leave the key out"
        )
        raise ConfigError("compile.cache_dir", message)
    grid = [override for override in overrides if _group(override) != "tracker"]  # cells have no tracker
    combos = combinations([*grid, "tracker=local"])
    axes = _axes([choices_in(combo) for combo in combos])
    cells: dict[tuple[str, ...], PlannedCell] = {}
    for combo in combos:
        plain = tuple(override for override in combo if _group(override) != "compile")
        eager = (*plain, "compile=eager")
        is_eager = choices_in(combo)["compile"] == "eager"
        for cell in (eager,) if is_eager else (eager, tuple(combo)):
            if cell not in cells:
                choices = choices_in(cell)
                labels = {axis: choices[axis] for axis in axes if axis in choices}
                config_or_error = _try_compose_eager(plain) if cell == eager else _try_compose(combo)
                cells[cell] = PlannedCell(labels, config_or_error)
    return list(cells.values())


def _axes(jobs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the fixed axes and the other keys in which the jobs differ."""
    swept = [key for key in jobs[0] if len({job[key] for job in jobs}) > 1]
    return [*_FIXED_AXES, *(key for key in swept if key not in _FIXED_AXES)]


def _eager_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the eager cell, which has no `compile.*`."""
    return {key: value for key, value in labels.items() if _group(key) != "compile"} | {"compile": "eager"}


def _group(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0]


def _try_compose_eager(overrides: Sequence[str]) -> Mapping[str, Any] | HydrantError:
    config = _try_compose(overrides)
    return config if isinstance(config, HydrantError) else uncompiled(config)


def _try_compose(overrides: Sequence[str]) -> Mapping[str, Any] | HydrantError:
    try:
        return check(compose(overrides))
    except HydrantError as error:
        return error
    except HYDRA_ERRORS as error:
        return explain(error)
