"""A comparison saved in W&B: a workspace and a report with its runs, grouped as here. The extra `wandb-workspaces`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from hydrant.compare.comparison import Comparison
from hydrant.compare.sources import Run
from hydrant.compare.terminal import as_text
from hydrant.errors import ConfigError, first_line
from hydrant.trackers.wandb_access import impatient, obstacle, own_service

_FLAG = "--wandb"
_PROBE_SECONDS = 10.0
_MAX_TITLE = 128
_MOST_RUNS = 200  # that a line plot shows at once


def check_login() -> None:
    """Whether views can be saved at all.

    Raises:
        ConfigError: the package or the account is missing.
    """
    if find_spec("wandb_workspaces") is None:
        raise ConfigError(_FLAG, "needs wandb-workspaces: pip install 'hydrant[wandb-workspaces]'")
    impatient()
    with own_service():
        refusal = obstacle(_PROBE_SECONDS)
    if refusal is not None:
        told = f"{refusal}; the workspace and the report both need a login: `wandb login`"
        raise ConfigError(_FLAG, told)


def save_views(comparison: Comparison) -> list[str]:
    """Save a workspace in every project of the runs, and a report in the first; lines that tell where they are.

    Raises:
        ConfigError: none of the runs is in W&B, or it does not take them.
    """
    projects = _projects(comparison.runs)
    if not projects:
        told = "none of the runs is in W&B; `hydrant sync` sends those that were kept offline"
        raise ConfigError(_FLAG, told)
    num_there = sum(map(len, projects.values()))
    lacking = len(comparison.runs) - num_there
    try:
        with own_service():
            lines = [f"W&B workspace: {_workspace(comparison, *own)}" for own in projects.items()]
            lines.append(f"W&B report: {_report(comparison, projects)}")
    except Exception as error:  # of the SDK, of pydantic, of the socket
        raise ConfigError(_FLAG, f"W&B does not take the comparison ({first_line(error)})") from error
    return lines + [f"{lacking} of the {len(comparison.runs)} runs are not in W&B"] * (lacking > 0)


def _projects(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The ids of the runs that are in W&B, by `entity/project`."""
    found: dict[str, list[str]] = {}
    for run in runs:
        told: Mapping[str, Any] = run.summary.get("wandb") or {}
        if told.get("mode") == "online" and told.get("path"):
            project, _, run_id = str(told["path"]).rpartition("/")
            found.setdefault(project, []).append(run_id)
    return found


def _title(c: Comparison) -> str:
    """Without the slash of a metric: it would stand in an address."""
    return f"{c.goal.metric} by {', '.join(c.by) or 'all runs'}".replace("/", " ")[:_MAX_TITLE]


def _workspace(c: Comparison, path: str, run_ids: Sequence[str]) -> str:
    from wandb_workspaces import expr
    from wandb_workspaces import workspaces as ws

    entity, project = path.split("/")
    workspace = ws.Workspace(
        entity=entity,
        project=project,
        name=_title(c),
        sections=[ws.Section(name="Comparison", panels=_panels(c), is_open=True)],
        settings=ws.WorkspaceSettings(x_axis="num_updates", max_runs=_MOST_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=[expr.Metric("ID").isin(list(run_ids))], groupby=[expr.Config(key) for key in c.by]
        ),
    )
    return workspace.save().url


def _report(c: Comparison, projects: Mapping[str, Sequence[str]]) -> str:
    from wandb_workspaces import expr
    from wandb_workspaces.reports import v2 as wr

    runsets = [
        wr.Runset(
            *path.split("/"),
            name=path,
            filters=[expr.Metric("ID").isin(list(run_ids))],
            groupby=[f"config.{key}" for key in c.by],
        )
        for path, run_ids in projects.items()
    ]
    entity, project = next(iter(projects)).split("/")
    told = re.sub(r"\033\[\d+m", "", as_text(c, None))  # bold, in a terminal
    report = wr.Report(
        entity=entity,
        project=project,
        title=_title(c),
        description="Saved by hydrant compare",
        blocks=[
            wr.CodeBlock(code=told, language="markdown"),
            wr.PanelGrid(runsets=runsets, panels=_panels(c)),
        ],
        width="fluid",
    )
    return report.save().url


def _panels(c: Comparison) -> list[Any]:
    """The figures that W&B has, too."""
    from wandb_workspaces.reports import v2 as wr

    axes = [wr.Config(key) for key in c.keys] + [wr.SummaryMetric(c.goal.metric)]
    curves = [c.goal.metric] + ["train/loss"] * any("train/loss" in run.series for run in c.runs)
    panels: list[Any] = [
        wr.LinePlot(
            title=metric,
            x="num_updates",
            y=[metric],
            groupby_aggfunc="mean",
            groupby_rangefunc="stderr",
            max_runs_to_show=_MOST_RUNS,
        )
        for metric in curves
    ]
    panels += [
        wr.ParallelCoordinatesPlot(columns=[wr.ParallelCoordinatesPlotColumn(metric=axis) for axis in axes]),
        wr.ParameterImportancePlot(with_respect_to=c.goal.metric),
        wr.RunComparer(diff_only=True),
    ]
    for place, panel in enumerate(panels):  # two beside each other; a report is 24 units wide
        panel.layout = wr.Layout(x=12 * (place % 2), y=8 * (place // 2), w=12, h=8)
    return panels
