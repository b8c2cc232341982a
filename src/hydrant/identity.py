"""Who a run is: how trackers name it, and what its folder says it was asked to do."""

from __future__ import annotations

from omegaconf import OmegaConf

from hydrant.config.plain import flatten
from hydrant.job import Job
from hydrant.redaction import redacted
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.record import replace_file


def identify(job: Job) -> RunIdentity:
    """How trackers name and group a run: from the choices of the config groups."""
    choices = {group: choice for group, choice in job.choices.items() if choice is not None}
    subject = choices.get("experiment") or f"{choices['data']}-{choices['model']}"
    dated = job.config["name"] is None and job.sweep_folder is None
    return RunIdentity(
        folder=job.folder.resolve(),
        name=f"{job.folder.parent.name}_{job.folder.name}" if dated else job.folder.name,
        group=f"{subject}/{choices['optimizer']}/{choices['scheduler']}",
        job_type=choices["task"],
        tags=tuple(sorted(set(choices.values()))),
        config=redacted({**flatten(job.config), **job.choices, "overrides": list(job.overrides)}),
    )


def write_records(job: Job) -> None:
    """Hydra's own files into `.hydra/`, and the resolved config; without secrets."""
    folder = job.folder / ".hydra"
    folder.mkdir(exist_ok=True)
    for name, text in job.records.items():
        (folder / name).write_text(text, encoding="utf-8")
    replace_file(job.folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(redacted(job.config))))
