"""Weights alone, to start from or to look at: of a checkpoint, a safetensors file or a pretrained model of timm."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hydrant.checkpoint import storage
from hydrant.checkpoint.folder import find
from hydrant.errors import CheckpointError, ConfigError, first_line

log = logging.getLogger("hydrant")

TIMM = "timm:"


@dataclass(frozen=True)
class Weights:
    """Where weights are: `source` is a checkpoint's folder, a safetensors file or `timm:<model>.<tag>`."""

    source: Path | str
    part: str = "model"

    def read(self, key: str) -> dict[str, Tensor]:
        """All of them, whole, on the host; `key` is the config key that named them.

        Raises:
            CheckpointError: a file is damaged.
            ConfigError: timm does not have them.
        """
        if isinstance(self.source, str):
            return _of_timm(self.source, key)
        files = _files(self.source, self.part)
        targets = {
            name: torch.empty(size, dtype=dtype) for name, (size, dtype) in storage.shapes(files).items()
        }
        storage.read(files, targets)
        return targets

    def load(self, model: nn.Module, key: str, *, strict: bool = True) -> None:
        """Load them into a model on the host; those that fit, if not `strict`, and tell of the others.

        Raises:
            ConfigError: they are another model's.
        """
        weights = self.read(key)
        there = {name: value.shape for name, value in weights.items()}
        wrong = _misfits(there, model)
        if wrong and strict:
            told = f"the weights in {self.source} are another model's: {_listed(wrong)}; choose that model"
            raise ConfigError(key, told)
        if len(wrong) == len(there.keys() | model.state_dict().keys()):
            raise ConfigError(key, f"none of the weights in {self.source} fits: {_listed(wrong)}")
        for told in wrong.values():
            log.warning("not loaded from %s: %s", self.source, told)
        fitting = {name: value for name, value in weights.items() if name not in wrong}
        model.load_state_dict(fitting, strict=strict)


def find_weights(source: str, key: str) -> Weights:
    """The weights that a config names: a run, a checkpoint, a safetensors file or `timm:<model>.<tag>`.

    Raises:
        ConfigError: there are none.
    """
    if source.startswith(TIMM):
        return Weights(source)
    if Path(source).is_file():
        if Path(source).suffix != ".safetensors":
            raise ConfigError(
                key, f"{source} is no safetensors file; give one, or a run or checkpoint folder"
            )
        return Weights(Path(source).resolve())
    return Weights(find(source, key))


def misfit(path: Path, model: nn.Module) -> str:
    """How the weights of a checkpoint folder differ from a model's in name or shape; "" where they fit."""
    there = {name: size for name, (size, _) in storage.shapes(_files(path, "model")).items()}
    return _listed(_misfits(there, model))


def _files(source: Path, part: str) -> list[Path]:
    if source.is_file():
        return [source]
    files = storage.files_of(source, part)
    if not files:
        raise CheckpointError(f"{source} holds no {part} weights")
    return files


def _misfits(there: Mapping[str, torch.Size], model: nn.Module) -> dict[str, str]:
    """What does not fit, by name: missing, unexpected, of another shape."""
    here = {name: value.shape for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    names = [name for name in (*here, *(there.keys() - here)) if there.get(name) != here.get(name)]
    return {
        name: f"{name} is {_shown(there.get(name))} there, {_shown(here.get(name))} here" for name in names
    }


def _shown(shape: torch.Size | None) -> str:
    return "absent" if shape is None else str(tuple(shape))


def _listed(wrong: Mapping[str, str]) -> str:
    told = list(wrong.values())
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")


def _of_timm(source: str, key: str) -> dict[str, Tensor]:
    import timm

    name = source.removeprefix(TIMM)
    try:
        return dict(timm.create_model(name, pretrained=True).state_dict())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(key, f"timm cannot load {name}'s weights: {first_line(error)}") from error
