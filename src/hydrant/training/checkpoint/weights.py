"""Weights without training state: of a checkpoint, a safetensors file or a pretrained model of timm."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hydrant.config.metric_keys import is_averaged
from hydrant.errors import CheckpointError, ConfigError, first_few, first_line, log
from hydrant.models import check_timm_name
from hydrant.training.checkpoint import storage
from hydrant.training.checkpoint.folder import BEST, find_checkpoint, newest_checkpoint

TIMM = "timm:"


@dataclass(frozen=True)
class Weights:
    """Where weights are read from: `source` is a checkpoint folder, a safetensors file or `timm:<model>.<tag>`."""

    source: Path | str
    part: str = "model"

    def __str__(self) -> str:
        return f"{self.source}{' (averaged)' if self.part == 'ema' else ''}"

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint folder, if they come from one."""
        return self.source if isinstance(self.source, Path) and self.source.is_dir() else None

    def read(self, key: str) -> dict[str, Tensor]:
        """Return all weights by name, unsharded, on the host. `key` is the config key that named them.

        Raises:
            CheckpointError: a file is damaged.
            ConfigError: timm does not have them.
        """
        if isinstance(self.source, str):
            return _timm_weights(self.source, key)
        files = _files(self.source, self.part)
        shapes = storage.shapes(files)
        weights = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in shapes.items()}
        storage.read(files, weights)
        return weights

    def load(self, model: nn.Module, key: str, *, strict: bool = True) -> None:
        """Load the weights into a model on the host. Without `strict`, load those that fit and log the others.

        Raises:
            ConfigError: they belong to another model.
        """
        weights = self.read(key)
        misfits = _misfits({name: (value.shape, value.dtype) for name, value in weights.items()}, model)
        listed = first_few([*misfits.values()])
        if misfits and strict:
            fitting = ", or write init_strict=false to load those that fit" if key == "init_from" else ""
            raise _of_another_model(key, self.source, listed, fitting)
        if len(misfits) == len(weights.keys() | model.state_dict().keys()):
            raise ConfigError(key, f"none of the weights in {self.source} fits: {listed}")
        if misfits:
            log.warning("not loaded from %s: %s", self.source, "; ".join(misfits.values()))
        fitting = {name: value for name, value in weights.items() if name not in misfits}
        model.load_state_dict(fitting, strict=strict)


def find_weights(source: str, key: str) -> Weights:
    """Return the weights of a run folder, checkpoint folder, safetensors file or `timm:<model>.<tag>`.

    Raises:
        ConfigError: there are none.
    """
    if source.startswith(TIMM):
        return Weights(source)
    if Path(source).is_file():
        if Path(source).suffix != ".safetensors":
            message = f"{source} is not a safetensors file"
            raise ConfigError(key, message, remedy="give one, or a run or checkpoint folder")
        return Weights(Path(source).resolve())
    return Weights(find_checkpoint(source, key), part_at(source))


def part_at(path: str | Path) -> str:
    """Return which weights the path of a run or a checkpoint names: `model`; or `ema`, the average.

    The path `checkpoints/best` of a run names those that were the best: the average if `best.metric` is one of it.

    Raises:
        CheckpointError: the newest checkpoint of this run cannot be read.
    """
    path = Path(path).absolute()
    newest = newest_checkpoint(path.parent) if path.name == BEST else None
    # The newest one has the metric by which `best` was last moved.
    judged_by = newest and storage.SavedCheckpoint(newest).plain_state("judged_by", list[str])
    return "ema" if judged_by and is_averaged(judged_by[0]) else "model"


def check_fits(path: Path, model: nn.Module, key: str) -> None:
    """Check that the weights of a checkpoint fit a model.

    Raises:
        ConfigError: they differ from the model's in name, shape or kind.
    """
    if misfits := _misfits(storage.shapes(_files(path, "model")), model):
        raise _of_another_model(key, path, first_few([*misfits.values()]))


def _of_another_model(key: str, source: Path | str, misfits: str, more: str = "") -> ConfigError:
    message = f"the weights in {source} belong to another model: {misfits}"
    return ConfigError(key, message, remedy=f"choose that model{more}")


def _files(source: Path, part: str) -> list[Path]:
    if source.is_file():
        return [source]
    files = storage.files_of(source, part)
    if not files:
        raise CheckpointError(f"{source} holds no {part} weights")
    return files


def _misfits(saved: Mapping[str, tuple[torch.Size, torch.dtype]], model: nn.Module) -> dict[str, str]:
    """Return a message for each weight that is missing, unexpected or of another shape or kind, by name."""
    there = {name: _form(*form) for name, form in saved.items()}
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    built = {name: _form(value.shape, value.dtype) for name, value in tensors.items()}
    return {
        name: f"{name} is {there.get(name, 'absent')} in the file, {built.get(name, 'absent')} in the model"
        for name in {**built, **there}
        if there.get(name) != built.get(name)
    }


def _form(size: torch.Size, dtype: torch.dtype) -> str:
    """Describe the shape and the kind of a weight: float types are converted, but a complex one would lose its half."""
    if dtype.is_floating_point:
        return f"{tuple(size)}"
    return f"{tuple(size)} {'complex' if dtype.is_complex else 'bool' if dtype is torch.bool else 'int'}"


def _timm_weights(source: str, key: str) -> dict[str, Tensor]:
    import timm

    name = source.removeprefix(TIMM)
    check_timm_name(name, key)
    try:
        return dict(timm.create_model(name, pretrained=True).state_dict())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(key, f"timm cannot load {name}'s weights: {first_line(error)}") from error


def with_weights(model: nn.Module, *, path: str | None) -> nn.Module:
    """Return the model with the weights of a run or checkpoint folder; unchanged if `path` is None.

    Raises:
        ConfigError: there is no such run, or its weights belong to another model.
    """
    if path is not None:
        Weights(find_checkpoint(path, "task.teacher.path"), part_at(path)).load(model, "task.teacher.model")
    return model
