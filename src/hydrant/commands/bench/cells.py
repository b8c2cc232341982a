"""The cells of a grid: one config per combination of the swept values, and the eager cell of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydrant.commands.bench.results import CellResult, Measurement, group_of, with_baselines
from hydrant.config.check import check
from hydrant.config.compose import combinations, compose, uncompiled
from hydrant.config.error_messages import HYDRA_ERRORS, explain
from hydrant.errors import ConfigError, HydrantError
from hydrant.runs.folder import choices_in

_FIXED_AXES = ("precision", "compile")
"""Keys that are axes even if they have one value, because they identify a cell's eager cell."""


def with_defaults(overrides: Sequence[str], *, on_gpu: bool) -> list[str]:
    """Return the overrides, preceded by defaults for the axes that they leave out."""
    choices = choices_in(overrides)
    defaults = {
        "precision": "fp32,tf32,bf16" if on_gpu else "fp32,bf16",
        "compile": "eager,default,blocks" + (",reduce_overhead,max_autotune" if on_gpu else ""),
    }
    # The overrides do not choose what is trained.
    if choices.keys().isdisjoint({"experiment", "data", "model", "task"}):
        defaults = {"experiment": "vit_fake" if on_gpu else "vit_tiny_fake"} | defaults
    return [*(f"{key}={values}" for key, values in defaults.items() if key not in choices), *overrides]


def plan_cells(overrides: Sequence[str]) -> list[CellResult]:
    """Return a cell for every combination of values and, before it, its eager cell. Each cell occurs once.

    A cell whose config is wrong has the status `refused`.

    Raises:
        ConfigError: the overrides cannot be read, or set a key that `bench` sets itself.
    """
    if "compile.cache_dir" in choices_in(overrides):
        reason = "each cell has its own empty folder, so that its first repeat compiles cold"
        raise ConfigError("compile.cache_dir", f"{reason}; leave the key out")
    grid = [override for override in overrides if group_of(override) != "tracker"]  # cells have no tracker
    combos = combinations([*grid, "tracker=local"])
    axes = _axes([choices_in(combo) for combo in combos])
    cells: dict[tuple[str, ...], CellResult] = {}
    for combo in combos:
        plain = [override for override in combo if group_of(override) != "compile"]
        eager = (*plain, "compile=eager")
        is_eager = choices_in(combo)["compile"] == "eager"
        for cell in (eager,) if is_eager else (eager, tuple(combo)):
            if cell not in cells:
                choices = choices_in(cell)
                labels = {axis: choices[axis] for axis in axes if axis in choices}
                cells[cell] = _eager_cell(labels, plain) if cell == eager else _cell(labels, combo)
    return with_baselines(cells.values())


def _axes(jobs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the fixed axes and the other keys in which the jobs differ."""
    swept = [key for key in jobs[0] if len({job[key] for job in jobs}) > 1]
    return [*_FIXED_AXES, *(key for key in swept if key not in _FIXED_AXES)]


def _eager_cell(labels: Mapping[str, str], overrides: Sequence[str]) -> CellResult:
    cell = _cell(labels, overrides)
    return cell if cell.error is not None else CellResult(labels, uncompiled(cell.config))


def _cell(labels: Mapping[str, str], overrides: Sequence[str]) -> CellResult:
    try:
        return CellResult(labels, check(compose(overrides)))
    except (HydrantError, *HYDRA_ERRORS) as error:
        return CellResult(labels, {}, [Measurement(error=str(explain(error)), is_refused=True)])
