"""How trackers name and group a run, and the record of its config in its folder."""

from collections.abc import Collection, Mapping
from typing import Any

from hydrant.config.flat import flatten, is_neutral, redacted_yaml
from hydrant.config.schema import INTERVALS, REPETITIONS
from hydrant.files.atomic_write import replace_file
from hydrant.files.redaction import redacted
from hydrant.runs.folder import CONFIG, HYDRA
from hydrant.runs.job import Job
from hydrant.trackers.base import RunIdentity

_PARTS = ("data", "model", "optimizer", "scheduler", "task")
"""The config groups whose options name a run."""


def identify(job: Job) -> RunIdentity:
    """Return how trackers name and group a run, from its choices of config groups and its overrides.

    Runs that differ only in the seed, the fold, or in keys that do not affect the result, share a group.
    """
    choices = {group: choice for group, choice in job.choices.items() if choice is not None}
    parts = {group: choices.get(group) or _target_name(job, group) for group in _PARTS}
    subject = choices.get("experiment") or f"{parts['data']}-{parts['model']}"
    overrides = redacted(list(job.overrides))
    shown = {"experiment"} if "experiment" in choices else {"data", "model"}
    telling = [word for word in overrides if not _is_left_out(word, shown)]
    group = "/".join([subject, parts["optimizer"], parts["scheduler"], ",".join(sorted(telling))])
    claim = [] if job.config["claim"] is None else [f"claim: {job.config['claim']}"]
    best, is_named = job.config["best"], job.config["name"] is not None
    sweep = [job.sweep_folder.name] if job.sweep_folder is not None and is_named else []
    is_dated = not is_named and job.sweep_folder is None
    return RunIdentity(
        folder=job.folder.resolve(),
        name=f"{job.folder.parent.name}_{job.folder.name}" if is_dated else job.folder.name,
        group=group.rstrip("/"),
        job_type=parts["task"],
        tags=tuple(redacted(list(dict.fromkeys([*job.config["tags"], *sweep])))),
        notes=redacted(job.config["notes"] or "\n".join([*claim, " ".join(overrides)])),
        best=(best["metric"], best["mode"]),
        config=redacted({**flatten(job.config), **job.choices, "overrides": list(job.overrides)}),
    )


def _target_name(job: Job, group: str) -> str:
    """Return the name of the class of a part that is no option, as in `~model '+model={_target_: ...}'`."""
    node: Any = job.config.get(group)
    has_target = isinstance(node, Mapping) and "_target_" in node
    return str(node["_target_"]).rpartition(".")[2] if has_target else "none"


def _is_left_out(override: str, shown: Collection[str]) -> bool:
    """Return whether the group's name leaves out an override: it is in the name already, or affects no result."""
    key = override.lstrip("+~").partition("=")[0]
    return key in {*shown, *INTERVALS, "optimizer", "scheduler", *REPETITIONS} or is_neutral(key)


def write_records(job: Job) -> None:
    """Write Hydra's files into `.hydra/`, and the resolved config, without secrets. The folder is locked."""
    folder = job.folder / HYDRA
    folder.mkdir(exist_ok=True)
    for name, text in job.records.items():
        replace_file(folder / name, text)
    replace_file(job.folder / CONFIG, redacted_yaml(job.config))
