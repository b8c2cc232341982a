"""Where a run starts: at the beginning, at a checkpoint, or not at all because it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from hydrant.checkpoint import Weights, find, find_weights, misfit, newest, newest_whole
from hydrant.earlier import changed_keys, earlier_start, saved_config
from hydrant.errors import ConfigError
from hydrant.logs import log


@dataclass(frozen=True)
class Start:
    """Where a run starts. `checkpoint` holds everything, `weights` only a model.

    A checkpoint that `is_foreign` lies in another run's folder, to be taken over from there. `changed` is what of the
    config differs from the checkpoint's, where that is allowed: key, value there, value here.
    """

    checkpoint: Path | None = None
    weights: Weights | None = None
    is_foreign: bool = False
    is_finished: bool = False
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])

    def prepare(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        """Give a model on the host the weights to start from; with a checkpoint, only see that they are its own.

        Raises:
            ConfigError: they are another model's.
        """
        if self.weights is not None:
            self.weights.load(model, "init_from", strict=config["init_strict"])
            log.info("weights from %s", self.weights.source)
        difference = "" if self.checkpoint is None else misfit(self.checkpoint, model)
        if difference:
            told = f"the weights in {self.checkpoint} are another model's: {difference}; choose that model"
            raise ConfigError("resume", told)


def starting_point(config: Mapping[str, Any], folder: Path) -> Start:
    """Decide by `resume`, `init_from` and what the run folder holds.

    Raises:
        ConfigError: the folder or the checkpoint belongs to another config, or there is none to continue.
        CheckpointError: there are checkpoints, but none is whole.
    """
    resume, init_from = config["resume"], config["init_from"]
    own, before = newest(folder / "checkpoints"), earlier_start(config, folder)
    if own is not None and resume not in ("auto", None):
        _refuse_another(resume, own, saved_config(folder, "resume").get("resume"))
    if before.is_finished:
        return Start(own, is_finished=True)
    if own is not None:
        return Start(newest_whole(folder / "checkpoints"), changed=before.changed)
    if resume not in ("auto", None):
        found = find(resume, "resume")
        return Start(found, is_foreign=True, changed=changed_keys(config, found.parents[1]))
    return Start(weights=None if init_from is None else find_weights(init_from, "init_from"))


def _refuse_another(resume: str, newest: Path, before: str | None) -> None:
    """A run that has begun goes on from its newest checkpoint, and from no other."""
    given, own = Path(resume).resolve(), newest.resolve()
    if given in (own, own.parents[1]) or (before is not None and given == Path(before).resolve()):
        return
    raise ConfigError(
        "resume",
        f"this run goes on from its own {newest.name}, not from {resume}; leave resume out, or give "
        "name=<folder> too and a new run goes on from there",
    )
