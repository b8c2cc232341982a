"""W&B in `hydrant compare`: read runs, and save a comparison as workspaces with the same groups.

Runs are read with W&B's public API, and equal those that are read from their folders. Workspaces need the extra
`wandb-workspaces`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from hydrant.config.flat import flatten
from hydrant.errors import ConfigError, check_known, first_line
from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.run import Run, equals_label, flat_with_added_keys, label
from hydrant.extensions.wandb.sdk import access_problem, sdk_session
from hydrant.files.read_file import check_plain
from hydrant.installation import require_extra
from hydrant.records import Summary, check_type
from hydrant.runs.folder import RunStatus, choices_in, status_of

FIELDS = {"group": "group", "job_type": "jobType", "name": "displayName", "state": "state", "sweep": "sweep",
          "tag": "tags"}  # fmt: skip
"""The fields of W&B runs in a filter, with W&B's names for them. Every other name is a config key."""

_STATES = {"preempting": RunStatus.PREEMPTED, "pending": RunStatus.NOT_STARTED}
"""W&B's states with another name in Hydrant."""

_NUM_THREADS = 8  # for reading histories

_PREFIX = "wandb:"
_FLAG = "--wandb"
_MAX_TITLE = 128
_MAX_RUNS = 200  # in a line plot
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def read_runs(word: str) -> Sequence[Run]:
    """Read `wandb:entity/project` (all runs), `.../run` (one run) or `...?group=a,b&optimizer=adamw` (matching runs).

    Raises:
        ConfigError: the word is malformed, matches no runs, or W&B cannot be read.
    """
    address, _, text = word.removeprefix(_PREFIX).partition("?")
    parts = [unquote(part) for part in address.strip("/").split("/")]
    if len(parts) == 4 and parts[2] == "runs":  # as in the URL of its page
        del parts[2]
    if not 2 <= len(parts) <= 3 or not all(parts):
        remedy = "write wandb:entity/project, wandb:entity/project/run or wandb:...?group=lr_study"
        raise ConfigError("RUNS", f"{word!r} names no project of W&B", remedy=remedy)
    pairs = [condition.partition("=") for condition in text.split("&") if condition]
    conditions = {unquote(key): [*map(unquote, values.split(","))] for key, _, values in pairs}
    with sdk_session(fail_fast=True):
        problem, runs = access_problem(), list[Run]()
        try:
            if problem is None:
                runs = _fetch("/".join(parts[:2]), "".join(parts[2:]), conditions)
        except Exception as error:  # the SDK raises its own errors, pydantic's and the socket's
            problem = f"W&B cannot be read ({first_line(error)})"
    if problem is not None:
        remedy = "check the name, log in with `wandb login`, or give run folders"
        raise ConfigError("RUNS", f"{word!r}: {problem}", remedy=remedy)
    known = {*FIELDS, *(key for run in runs for key in run.config)}
    for key, values in conditions.items() if runs else ():
        check_known("RUNS", "key", key, known)
        if key not in FIELDS:  # W&B cannot select by keys with dots
            runs = [run for run in runs if any(equals_label(text, label(run, key)) for text in values)]
    if not runs:
        remedy = "leave out a part of the filter to see the available runs"
        raise ConfigError("RUNS", f"{word!r}: no such runs", remedy=remedy)
    return runs


def _fetch(project: str, run_id: str, conditions: Mapping[str, Sequence[str]]) -> list[Run]:
    """Read the runs that match the conditions on W&B's fields. `run_id`: "" for all runs."""
    import wandb

    filters: dict[str, Any] = {FIELDS[k]: {"$in": v} for k, v in conditions.items() if k in FIELDS}
    if run_id:
        filters = {"$and": [{"name": run_id}, filters]}
    runs = list(wandb.Api().runs(project, filters=filters, per_page=200, lazy=False))
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return list(pool.map(_read_run, runs))


def _read_run(wandb_run: Any) -> Run:
    """Read a run of the SDK with all rows of its history. Its record is as untrusted as a file of a run folder."""
    path, title = "/".join(wandb_run.path), wandb_run.name or wandb_run.id
    name, words = f"{_PREFIX}{path}", wandb_run.config.get("overrides", [])
    recorded: dict[str, Any] = wandb_run.summary_metrics.get("hydrant") or {}
    try:
        check_plain([wandb_run.config, recorded])
        check_type(words, list[str])
        check_type(recorded, dict[str, Any])
        check_type({"status": RunStatus.RUNNING.value, "num_updates": 0} | recorded, Summary)
    except ValueError as error:
        message = f"its record in W&B is damaged ({error})"
        return Run(name, RunStatus.DAMAGED, {}, {}, {}, error=message, title=title)
    config = flatten({key: value for key, value in wandb_run.config.items() if key != "overrides"})
    rows = _rows(wandb_run.scan_history())
    num_updates = max((int(row["num_updates"]) for row in rows), default=0)
    status = wandb_run.state
    if status == RunStatus.FAILED:
        status = recorded.get("status", status)  # it may be more precise
    state = status_of({**recorded, "status": status})
    address = {"id": wandb_run.id, "mode": "online", "path": path}
    summary = {"num_updates": num_updates, **recorded, "wandb": address}
    config, error = flat_with_added_keys(config) if config else {}, recorded.get("error") or {}
    facts = _STATES.get(state, state), config, choices_in(words), summary
    return Run(name, *facts, error=error.get("message", ""), title=title).with_rows(rows)


def _rows(history: Iterator[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as in metrics.jsonl, where rows that a resumed run logged again appear once."""
    rows: list[dict[str, Any]] = []
    for row in history:
        logged = {key: value for key, value in row.items() if "/" in key}
        numbers = {k: v for k, v in logged.items() if isinstance(v, int | float) or v in _NOT_FINITE}
        values = {key: value if math.isfinite(float(value)) else None for key, value in numbers.items()}
        if not values:  # a picture
            continue
        counts = {key: row[key] for key in ("num_updates", "time") if isinstance(row.get(key), int | float)}
        new = {"num_updates": row["_step"], "time": None, **counts, **values}
        _drop_repeated(rows, new)
        rows.append(new)
    return rows


def _drop_repeated(rows: list[dict[str, Any]], new: Mapping[str, Any]) -> None:
    """Remove the rows past a checkpoint if `new` is the first row after a resume from it.

    An update may have several rows, for example one of training and one of evaluation. They have no key in common
    except those of compilation.
    """
    keys = {key for key in new if not key.startswith("compile/")} - {"num_updates", "time"}
    later = list(takewhile(lambda row: row["num_updates"] >= new["num_updates"], reversed(rows)))
    if any(row["num_updates"] > new["num_updates"] or not keys.isdisjoint(row) for row in later):
        del rows[-len(later) :]


def view_saver() -> Callable[[Comparison], list[str]]:
    """Return the function that saves a comparison in W&B.

    Raises:
        ConfigError: wandb-workspaces is not installed, or W&B cannot be used online.
    """
    require_extra("wandb-workspaces", ["wandb_workspaces"], _FLAG, "a workspace")
    with sdk_session(fail_fast=True):
        problem = access_problem()
    if problem is not None:
        raise ConfigError(_FLAG, problem, remedy="a workspace needs a login: `wandb login`")
    return save_views


def save_views(comparison: Comparison) -> list[str]:
    """Save a workspace in every project of the runs. Return lines with their addresses.

    Raises:
        ConfigError: none of the runs is in W&B, or W&B rejects the views.
    """
    projects = _projects(comparison.runs)
    if not projects:
        raise ConfigError(_FLAG, "none of the runs is in W&B", remedy="`hydrant sync` uploads offline runs")
    num_missing = len(comparison.runs) - sum(map(len, projects.values()))
    try:
        with sdk_session(fail_fast=True):
            lines = [f"W&B workspace: {_workspace(comparison, path, ids)}" for path, ids in projects.items()]
    except Exception as error:  # the SDK raises its own errors, pydantic's and the socket's
        raise ConfigError(_FLAG, f"W&B rejects the comparison ({first_line(error)})") from error
    return lines + [f"{num_missing} of the {len(comparison.runs)} runs are not in W&B"] * (num_missing > 0)


def _projects(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the ids of the runs in W&B by `entity/project`."""
    projects: dict[str, list[str]] = {}
    for run in runs:
        address: Mapping[str, Any] = run.summary.get("wandb") or {}
        if address.get("mode") == "online" and address.get("path"):
            project, _, run_id = str(address["path"]).rpartition("/")
            projects.setdefault(project, []).append(run_id)
    return projects


def _workspace(c: Comparison, path: str, run_ids: Sequence[str]) -> str:
    from wandb_workspaces import expr
    from wandb_workspaces import workspaces as ws

    entity, project = path.split("/")
    title = f"{c.metric.name} by {', '.join(c.by) or 'all runs'}"
    filters = [expr.Metric("ID").isin(list(run_ids))]
    workspace = ws.Workspace(
        entity=entity,
        project=project,
        name=title.replace("/", " ")[:_MAX_TITLE],  # W&B uses it in an address
        sections=[ws.Section(name="Comparison", panels=_panels(c), is_open=True)],
        settings=ws.WorkspaceSettings(x_axis="num_updates", max_runs=_MAX_RUNS),
        runset_settings=ws.RunsetSettings(filters=filters, groupby=[expr.Config(key) for key in c.by]),
    )
    return workspace.save().url


def _panels(c: Comparison) -> list[Any]:
    """Return the figures of the page that W&B has too."""
    from wandb_workspaces.reports import v2 as wr

    axes = [wr.Config(key) for key in c.keys] + [wr.SummaryMetric(c.metric.name)]
    curves = [c.metric.name] + ["train/loss"] * any("train/loss" in run.series for run in c.runs)
    panels: list[Any] = [
        wr.LinePlot(
            title=metric, x="num_updates", y=[metric], groupby_aggfunc="mean", groupby_rangefunc="stderr",
            max_runs_to_show=_MAX_RUNS,
        )
        for metric in curves
    ]  # fmt: skip
    panels += [
        wr.ParallelCoordinatesPlot(columns=[wr.ParallelCoordinatesPlotColumn(metric=axis) for axis in axes]),
        wr.ParameterImportancePlot(with_respect_to=c.metric.name),
        wr.RunComparer(diff_only=True),
    ]
    return panels
