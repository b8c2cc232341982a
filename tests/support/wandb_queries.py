"""Answers of the stand-in server to queries of W&B's public API: runs by filter, and the rows of their history."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from wandb_received import ENTITY, ReceivedRun, encode

Variables = dict[str, Any]
Answers = dict[str, Callable[[Variables], dict[str, Any]]]


def queries(runs: Mapping[tuple[str, str], ReceivedRun]) -> Answers:
    """Return the answers by operation."""

    def listed(variables: Variables) -> dict[str, Any]:
        project, filters = variables["project"], json.loads(variables["filters"])
        project_runs = [run for run in runs.values() if run.project == project]
        if not project_runs or variables["entity"] != ENTITY:
            return {"project": None}
        selected = [run for run in project_runs if matches(run, filters)]
        edges = [{"node": node(run), "cursor": run.run_id} for run in selected]
        page = {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}
        return {"project": {"internalId": "1", "runCount": len(selected), "readOnly": False, "runs": page}}

    def of_run(answer: Callable[[ReceivedRun, Variables], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def run(variables: Variables) -> dict[str, Any]:
            run_id = next(variables[key] for key in ("run", "runName", "name") if key in variables)
            return {"project": {"run": answer(runs[variables["project"], run_id], variables)}}

        return run

    def projects(variables: Variables) -> dict[str, Any]:
        names = sorted({project for project, _ in runs}) if variables["entity"] == ENTITY else []
        edges = [{"node": project_of(name), "cursor": name} for name in names]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"models": {"edges": edges, "pageInfo": page}}

    return {
        "Runs": listed,
        "GetProjects": projects,
        "ProjectInternalId": lambda variables: {"project": project_of(variables["projectName"])},
        "RunHistoryKeys": of_run(lambda run, _: {"historyKeys": history_keys(run)}),
        "RunParquetHistory": of_run(
            lambda run, _: {"parquetHistory": {"parquetUrls": [], "liveData": rows_of(run)}}
        ),
        "HistoryPage": of_run(history_page),
    }


def node(run: ReceivedRun) -> dict[str, Any]:
    """Return a run in the form of the public API."""
    return run.bucket | {
        "projectId": 1,
        "state": run.state,
        "group": run.group,
        "jobType": run.job_type,
        "commit": None,
        "readOnly": False,
        "createdAt": "2026-01-01T00:00:00Z",
        "heartbeatAt": "2026-01-01T00:00:00Z",
        "systemMetrics": "{}",
        "user": {"name": ENTITY, "username": ENTITY},
        "historyKeys": history_keys(run),
    }


def project_of(name: str) -> dict[str, Any]:
    about = {"createdAt": "2026-01-01T00:00:00Z", "isBenchmark": False, "user": None}
    return {"id": encode("Project", name), "internalId": "1", "name": name, "entityName": ENTITY} | about


def history_keys(run: ReceivedRun) -> dict[str, Any]:
    return {"sets": [], "keys": {}, "lastStep": max((row["_step"] for row in run.history), default=-1)}


def rows_of(run: ReceivedRun) -> list[dict[str, Any]]:
    """Return the rows in W&B's form, with strings for NaN and infinity, because JSON has neither."""
    texts = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [{key: texts.get(str(value), value) for key, value in row.items()} for row in run.history]


def history_page(run: ReceivedRun, variables: Variables) -> dict[str, Any]:
    first, end = int(variables["minStep"]), int(variables["maxStep"])
    return {"history": [json.dumps(row) for row in rows_of(run) if first <= row["_step"] < end]}


def matches(run: ReceivedRun, filters: Mapping[str, Any]) -> bool:
    """Return whether a run matches a filter. Covers the part of MongoDB's query language that Hydrant uses."""
    fields = {"name": run.run_id, "displayName": run.name, "group": run.group, "jobType": run.job_type,
              "state": run.state, "sweep": run.sweep, "tags": run.tags}  # fmt: skip

    def matches_one(key: str, value: Any) -> bool:
        if key == "$and":
            return all(matches(run, part) for part in value)
        values = fields[key] if isinstance(fields[key], list) else [fields[key]]
        return not set(values).isdisjoint(value["$in"] if isinstance(value, dict) else [value])

    return all(matches_one(key, value) for key, value in filters.items())
