"""The content of a checkpoint, as a run passes it to be saved and reads it back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydrant.errors import CheckpointError, typed_line
from hydrant.optimizers.norms import is_sharded
from hydrant.training.checkpoint import storage
from hydrant.training.checkpoint.manifest import TRAINING
from hydrant.training.checkpoint.tree import join, split, tensors_in


@dataclass(frozen=True)
class Checkpoint:
    """Weights by name, and the nested training state of plain types and tensors."""

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    ema: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Snapshot:
    """A copy of a checkpoint's content on the host, which further training does not change."""

    parts: dict[str, dict[str, Tensor]]
    texts: dict[str, str]  # the other files, by name

    @classmethod
    def of(cls, content: Checkpoint, *, is_rank_zero: bool, reuse: Snapshot | None = None) -> Snapshot:
        """Copy this rank's part of the content: its shards, and on rank 0 also the tensors that every rank holds.

        The memory of `reuse`, an earlier snapshot, is overwritten where it fits, because allocating memory takes
        several times as long as copying.
        """
        training: dict[str, Tensor] = {}
        plain = split(content.training, training)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "training": {}}
        for part, tensors in zip(parts, (content.model, content.ema, training), strict=True):
            for name, value in tensors.items():
                if not isinstance(value, Tensor):
                    raise CheckpointError(f"{name} cannot be saved: {type(value).__name__} is not a tensor")
                if is_rank_zero or is_sharded(value):
                    target = reuse.parts[part].get(name) if reuse else None
                    parts[part][name] = _copy_to_host(value, target)
        return cls(parts, {TRAINING: json.dumps(plain) + "\n"})


def _copy_to_host(tensor: Tensor, target: Tensor | None) -> Tensor:
    """Return a copy, in `target` if shape and dtype fit. Do not wait for copies from CUDA."""
    if target is not None and (target.shape, target.dtype) == (tensor.shape, tensor.dtype):
        _local(target).copy_(_local(tensor.detach()), non_blocking=True)
        return target
    return tensor.detach().to("cpu", non_blocking=True, copy=True, memory_format=torch.contiguous_format)


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a sharded tensor, or the tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def plain_state(path: Path, key: str) -> Any:
    """Return what was saved as `training[key]`, with placeholders for its tensors.

    Raises:
        CheckpointError: it cannot be read.
    """
    file = path / TRAINING
    try:
        return json.loads(file.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({typed_line(error)})") from error
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{file} holds no {key}") from error


def read_state(path: Path, key: str, owner: Callable[[str], Tensor | None] = lambda name: None) -> Any:
    """Return what was saved as `training[key]`, on the host.

    If `owner` returns a parameter of the same shape for the path of a tensor, the tensor is read onto that parameter's
    device and sharded like it.

    Raises:
        CheckpointError: it cannot be read.
    """
    plain = plain_state(path, key)
    files = storage.files_of(path, "training")
    shapes = storage.shapes(files)
    targets: dict[str, Tensor] = {}
    for name in tensors_in(plain):
        if name not in shapes:
            raise CheckpointError(f"{path} holds no {name}")
        targets[name] = _empty(*shapes[name], owner(name))
    storage.read(files, targets)
    try:
        return join(plain, targets)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path / TRAINING} cannot be read ({typed_line(error)})") from error


def weight_parts(path: Path) -> list[str]:
    """Return the weights that a checkpoint holds: `model`, and `ema` if weights are averaged."""
    return [part for part in ("model", "ema") if storage.files_of(path, part)]


def read_into(path: Path, part: str, targets: Mapping[str, Any]) -> None:
    """Read `model` or `ema` of a checkpoint into the tensors of a model's `state_dict()`, whole or sharded."""
    storage.read(storage.files_of(path, part), dict(targets))


def _empty(size: torch.Size, dtype: torch.dtype, owner: Tensor | None) -> Tensor:
    if owner is not None and owner.shape == size:
        return torch.empty_like(owner, dtype=dtype, requires_grad=False)
    return torch.empty(size, dtype=dtype)
