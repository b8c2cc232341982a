"""Who a run is: how trackers name it, and what its folder says it was asked to do."""

from __future__ import annotations

from collections.abc import Collection

from omegaconf import OmegaConf

from hydrant.config.plain import flatten, is_free
from hydrant.job import Job
from hydrant.redaction import redacted
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.record import replace_file


def identify(job: Job) -> RunIdentity:
    """How trackers name and group a run: from the choices of the config groups, and the overrides.

    Runs that differ in nothing but the seed, or in what decides nothing, fall into one group.
    """
    choices = {group: choice for group, choice in job.choices.items() if choice is not None}
    subject = choices.get("experiment") or f"{choices['data']}-{choices['model']}"
    overrides = redacted(list(job.overrides))
    shown = {"experiment"} if "experiment" in choices else {"data", "model"}
    others = [word for word in overrides if not _is_aside(word, shown)]
    group = "/".join([subject, choices["optimizer"], choices["scheduler"], ",".join(sorted(others))])
    sweep = [] if job.sweep_folder is None else [job.sweep_folder.name]
    claim = [] if job.config["claim"] is None else [f"claim: {job.config['claim']}"]
    best = job.config["best"]
    dated = job.config["name"] is None and job.sweep_folder is None
    return RunIdentity(
        folder=job.folder.resolve(),
        name=f"{job.folder.parent.name}_{job.folder.name}" if dated else job.folder.name,
        group=group.rstrip("/"),
        job_type=choices["task"],
        tags=tuple(sorted({*choices.values(), *sweep})),
        notes=redacted("\n".join([*claim, " ".join(overrides)])),
        best=(best["metric"], best["mode"]),
        config=redacted({**flatten(job.config), **job.choices, "overrides": list(job.overrides)}),
    )


def _is_aside(override: str, shown: Collection[str]) -> bool:
    """Whether an override makes no group of its own: it is told already, or decides nothing."""
    key = override.lstrip("+~").partition("=")[0]
    if key.endswith("_every"):  # how often it is looked at
        return True
    return key in {*shown, "optimizer", "scheduler", "seed"} or is_free(key)


def write_records(job: Job) -> None:
    """Hydra's own files into `.hydra/`, and the resolved config; without secrets."""
    folder = job.folder / ".hydra"
    folder.mkdir(exist_ok=True)
    for name, text in job.records.items():
        replace_file(folder / name, text)
    replace_file(job.folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(redacted(job.config))))
