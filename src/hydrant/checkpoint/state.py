"""What a checkpoint holds, as a run gives it and gets it back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydrant.checkpoint import storage
from hydrant.checkpoint.tree import join, split, tensors_in
from hydrant.errors import CheckpointError, typed_line
from hydrant.norms import is_sharded

TRAINING = "training.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds: weights by name, and what resuming needs besides, nested, in plain types and tensors."""

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    ema: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint's content on the host, which no further training changes."""

    parts: dict[str, dict[str, Tensor]]
    texts: dict[str, str]  # the other files, by name

    @classmethod
    def of(cls, content: Checkpoint, *, is_rank_zero: bool, over: Snapshot | None = None) -> Snapshot:
        """Copy this rank's part of it: shards, and on rank 0 also what every rank has whole.

        `over` is an earlier one that nobody needs any more: its memory is used again, for to get new memory from the
        system takes several times as long as to copy.
        """
        training: dict[str, Tensor] = {}
        plain = split(content.training, training)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "training": {}}
        for part, tensors in (("model", content.model), ("ema", content.ema), ("training", training)):
            for name, value in tensors.items():
                if not isinstance(value, Tensor):
                    raise CheckpointError(f"{name} cannot be saved: {type(value).__name__} is no tensor")
                if is_rank_zero or is_sharded(value):
                    parts[part][name] = _on_host(value, None if over is None else over.parts[part].get(name))
        return cls(parts, {TRAINING: json.dumps(plain) + "\n"})


def _on_host(tensor: Tensor, over: Tensor | None) -> Tensor:
    """A copy, in the memory of `over` if that fits; on CUDA into pinned memory, without waiting for it."""
    if over is not None and (over.shape, over.dtype) == (tensor.shape, tensor.dtype):
        _own_part(over).copy_(_own_part(tensor.detach()), non_blocking=True)
        return over
    return tensor.detach().to("cpu", non_blocking=True, copy=True, memory_format=torch.contiguous_format)


def _own_part(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def plain_state(path: Path, key: str) -> Any:
    """What was saved as `training[key]`, but for its tensors.

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
    """What was saved as `training[key]`, on the host.

    A tensor whose path has an `owner`, a parameter of its shape, lives where that lives, sharded alike.

    Raises:
        CheckpointError: it cannot be read.
    """
    plain = plain_state(path, key)
    files = storage.files_of(path, "training")
    there = storage.shapes(files)
    names = list(tensors_in(plain))
    missing = next((name for name in names if name not in there), None)
    if missing is not None:
        raise CheckpointError(f"{path} holds no {missing}")
    targets = {name: _target(*there[name], owner(name)) for name in names}
    storage.read(files, targets)
    return join(plain, targets)


def parts(path: Path) -> list[str]:
    """The parts that a checkpoint has weights of: `model`, and `ema` where there is an average."""
    return [part for part in ("model", "ema") if storage.files_of(path, part)]


def read_into(path: Path, part: str, targets: Mapping[str, Any]) -> None:
    """Fill the tensors of a model's `state_dict()`, whole or sharded, with the `model` or `ema` of a checkpoint."""
    storage.read(storage.files_of(path, part), dict(targets))


def _target(size: torch.Size, dtype: torch.dtype, owner: Tensor | None) -> Tensor:
    if owner is not None and owner.shape == size:
        return torch.empty_like(owner, dtype=dtype, requires_grad=False)
    return torch.empty(size, dtype=dtype)
