"""The samples of a run: how its updates divide them, some to try, and checks that they are what the run expects."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrant.batch import Batch, as_real, is_inexact, tensors_of
from hydrant.clock import SampleCosts, batch_size_steps
from hydrant.data import Data, IterableSource, Source, StreamSpec
from hydrant.data.base import ON_HOST, Indices, digest_of_samples, labels_of
from hydrant.data.loader import LoaderSource
from hydrant.errors import ConfigError, DataError, log
from hydrant.training.distributed.world import World


def make_stream_spec(
    config: Mapping[str, Any], world: World, num_samples: int, costs: SampleCosts, doubles: torch.dtype
) -> StreamSpec:
    """Divide the samples of every update among ranks and micro-batches, all of which have the same size.

    Raises:
        ConfigError: they cannot be divided.
    """
    batch_sizes = batch_size_steps(config["global_batch_size"], num_samples, costs)
    micro, ranks = config["micro_batch_size"], world.world_size
    for batch_size in batch_sizes.values:
        if batch_size > num_samples:
            limit = "" if config["limit_train_samples"] is None else " (limit_train_samples)"
            message = f"{batch_size} is more than the {num_samples} training samples there are{limit}"
            raise ConfigError("global_batch_size", message, remedy=f"give {num_samples} or fewer")
        if batch_size % ranks:
            below = batch_size - batch_size % ranks
            near = f"{below} or {below + ranks}" if below else str(ranks)
            key = "limit_train_samples" if config["global_batch_size"] == "all" else "global_batch_size"
            if config[key] is None:  # there are no more samples
                near = below or f"no number below {ranks}"
            raise ConfigError(key, f"{batch_size} is not divisible by {ranks} ranks; {near} is")
    shared = math.gcd(*batch_sizes.values) // ranks
    micro = shared if micro in (None, "auto") else micro
    if shared % micro:
        divisors = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
        sizes = ", ".join(map(str, batch_sizes.values))
        message = f"{micro} samples on each of {ranks} rank(s) do not divide global_batch_size={sizes}"
        raise ConfigError("micro_batch_size", message, remedy=f"these do: {divisors}")
    return StreamSpec(config["seed"], batch_sizes, micro, world.rank, ranks, world.device, doubles)


def read_samples(data: Data, source: Source, num_samples: int) -> Batch:
    """Return `num_samples` samples in a row that can be read, or all if there are fewer, on the host.

    Raises:
        ConfigError: the batches of the source have another size than asked for.
        DataError: no such samples can be read.
    """
    num_samples = min(num_samples, source.num_samples)
    kind = type(source).__name__
    sizes = set[int]()
    for limit in (num_samples, source.num_samples):
        for batch in source.subset(range(limit)).batches(ON_HOST, num_samples):
            sizes.add(size := batch.num_samples)
            if size == num_samples:
                return batch
            if size > num_samples:
                break
    if sizes and (max(sizes) > num_samples or not data.damaged.num_damaged):
        wrong = f"{max(sizes)} samples, but batch_size={num_samples} asks for {num_samples}"
        raise ConfigError("data", f"{kind}.batches gives a batch of {wrong}")
    if not data.damaged.num_damaged:
        message = f"{kind}.batches gives no batch, although it has {source.num_samples} samples"
        raise ConfigError("data", message)
    sample = "sample" if num_samples == 1 else f"{num_samples} samples in a row"
    raise DataError(f"no {sample} can be read; the log names the damaged ones")


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
