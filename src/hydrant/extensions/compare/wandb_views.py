"""Save a comparison in W&B as workspaces, with the same groups. Needs the extra `wandb-workspaces`."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydrant.errors import ConfigError, first_line
from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.run import Run
from hydrant.extensions.wandb.sdk import access_problem, sdk_session
from hydrant.installation import require_extra

_FLAG = "--wandb"
_MAX_TITLE = 128
_MAX_RUNS = 200  # in a line plot


def check_login() -> None:
    """Check that comparisons can be saved in W&B.

    Raises:
        ConfigError: wandb-workspaces is not installed, or W&B cannot be used online.
    """
    require_extra("wandb-workspaces", ["wandb_workspaces"], _FLAG, "a workspace")
    with sdk_session(fail_fast=True):
        problem = access_problem()
    if problem is not None:
        raise ConfigError(_FLAG, problem, remedy="a workspace needs a login: `wandb login`")


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


def _title(c: Comparison) -> str:
    """Return the title, without the slash of a metric, because W&B uses the title in an address."""
    return f"{c.metric.name} by {', '.join(c.by) or 'all runs'}".replace("/", " ")[:_MAX_TITLE]


def _workspace(c: Comparison, path: str, run_ids: Sequence[str]) -> str:
    from wandb_workspaces import expr
    from wandb_workspaces import workspaces as ws

    entity, project = path.split("/")
    filters = [expr.Metric("ID").isin(list(run_ids))]
    workspace = ws.Workspace(
        entity=entity,
        project=project,
        name=_title(c),
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
