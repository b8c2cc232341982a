"""Checks that samples are what a run takes them for: their labels, and functions of the seed.

What a forward pass in training leaves in a model for the next one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from hydrant import seeding
from hydrant.batch import Batch, Outcome, as_real, is_inexact, tensors_of
from hydrant.data import Data, IterableSource, Source
from hydrant.data.base import ON_HOST, Indices, digest_of_samples
from hydrant.data.labels import labels_of
from hydrant.data.loader import LoaderSource
from hydrant.errors import ConfigError, log
from hydrant.training.distributed.world import World

T = TypeVar("T")
_Numbers = dict[str, Tensor]
_SEED = 0


def written_buffers(task: nn.Module, forward: Callable[[], tuple[T, Outcome]]) -> tuple[T, list[str]]:
    """Make a forward pass in training; return the first thing that it returns, and the names of the buffers that it
    changes, without the statistics of batch norms.

    Warn if the loss of another pass depends on numbers, tensors and buffers that the first one changes and that no
    checkpoint holds. It has the same samples, random numbers and saved buffers.
    """
    buffers = _copies(dict(task.named_buffers()))
    kept, saved = _not_saved(task), task.state_dict().keys()
    seeding.seed_process(_SEED)
    first, outcome = forward()
    written = _changed(buffers, _copies(dict(task.named_buffers())))
    if names := _changed(kept, _not_saved(task)):
        for name in buffers.keys() & saved:
            owner, _, own_name = name.rpartition(".")
            setattr(task.get_submodule(owner), own_name, buffers[name])
        seeding.seed_process(_SEED)
        if not are_equal(outcome.total_loss(), forward()[1].total_loss()):
            log.warning(
                "model: training changes %s, which no checkpoint holds: a run that continues, and evaluate, predict "
                "and export, begin with the first value; make it a buffer (register_buffer)",
                ", ".join(names),
            )
    norms = [f"{path}." for path, module in task.named_modules() if isinstance(module, _NormBase)]
    return first, [name for name in written if not name.startswith(tuple(norms))]


def _not_saved(task: nn.Module) -> _Numbers:
    """Return the numbers and tensors of a task that no checkpoint holds."""
    saved = task.state_dict().keys()
    values = dict[str, Any]({name: value for name, value in task.named_buffers() if name not in saved})
    for path, module in task.named_modules():
        if type(module).get_extra_state is nn.Module.get_extra_state:  # else checkpoints hold what it gives
            values |= {f"{path}.{name}".lstrip("."): value for name, value in vars(module).items()}
    return _copies(values)


def _copies(values: Mapping[str, Any]) -> _Numbers:
    """Return the numbers and tensors that can be compared, copied."""
    numbers = _Numbers()
    for name, value in values.items():
        if type(value) in (int, float):
            numbers[name] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
            numbers[name] = value.detach().clone()
    return numbers


def _changed(before: _Numbers, now: _Numbers) -> list[str]:
    """Return the names of the values that are new or others."""
    return [name for name, value in now.items() if name not in before or not are_equal(before[name], value)]


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same numbers. NaN is equal to itself."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if torch.equal(one, other):
        return True
    return is_inexact(one) and torch.equal(*(torch.nan_to_num(as_real(tensor)) for tensor in (one, other)))


_NUM_READ = 16


def warn_of_own_draws(data: Data) -> None:
    """Warn of samples that are other ones when they are read again, as from a generator that the data set keeps."""
    for key, source in (("data.train", data.train), ("data.val", data.val)):
        if not isinstance(source, LoaderSource):
            continue
        # One worker reads both, as in a run: in this process, a data set would open files that workers must not share.
        batches = _each(source, range(1))
        first, again = ([*_tensors(batches)] for _ in range(2))
        if len(first) != len(again) or not all(map(are_equal, first, again)):
            log.warning(
                "%s: a sample that is read twice has other numbers, so a run that continues, or has another "
                "data.num_workers, is another one; draw from the global generators of torch, NumPy or Python, which "
                "are seeded for each sample, and keep no generator or count",
                key,
            )


def check_labels(train: Source) -> None:
    """Read some samples of a source and check that their targets are its labels, by which classes are balanced.

    Raises:
        ConfigError: one has another target, for example by a `target_transform`.
    """
    labels = labels_of(train)
    if labels is None:
        return
    places = np.unique(np.linspace(0, len(labels) - 1, _NUM_READ).astype(int))
    targets = [batch.targets for batch in _each(train, places)]
    if len(targets) < len(places):  # damaged samples are left out
        return
    for place, target in zip(places.tolist(), targets, strict=True):
        if isinstance(target, Tensor) and target.numel() == 1 and target.item() != labels[place]:
            counted = f"balanced counts {labels[place]} for training sample {place}, whose target is {target.item()}"
            reason = "the attribute targets of the data set holds other numbers than its samples have"
            remedy = "give a number for each class"
            raise ConfigError("task.class_weights", f"{counted}: {reason}", remedy=remedy)


def check_ranks_read_alike(data: Data, first: Mapping[str, Batch], world: World) -> None:
    """Check that the splits of a stream have the same first samples on every rank: each keeps a part of what all read.

    Raises:
        ConfigError: they differ, so the stream has been divided before.
    """
    for key, batch in first.items():
        divided = isinstance(data.train, IterableSource) and data.train.is_divided and key == "data.train"
        if not divided and len({*world.all_gather(digest_of_samples([batch]))}) > 1:
            train = (
                "set data.divided=true (without limit_train_samples) if RANK or WORLD_SIZE divides it, or "
            )
            remedy = f"{train * (key == 'data.train')}read the same samples on each rank"
            raise ConfigError(key, "each rank reads other samples, and keeps a part of them", remedy=remedy)


def _tensors(batches: Iterable[Batch]) -> Iterator[Tensor]:
    for batch in batches:
        for tree in batch:
            yield from tensors_of(tree)


def _each(source: Source, places: Indices) -> Iterable[Batch]:
    """Return the samples at these places, as an evaluation on the host reads them, each as a batch."""
    return source.subset(places).batches(ON_HOST, 1)
