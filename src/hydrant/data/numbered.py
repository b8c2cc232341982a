"""The batches of a source together with the numbers of their samples, which damaged samples leave out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hydrant.batch import Batch, Tensors
from hydrant.data.base import Source, StreamSpec
from hydrant.data.loader import Collate, LoaderSource, SampleSet
from hydrant.errors import ConfigError


def numbered_batches(source: Source, spec: StreamSpec, batch_size: int) -> Iterator[tuple[Tensor, Batch]]:
    """Yield every evaluation batch and the numbers of its samples in the source, int64 (B,) on the host.

    Raises:
        ConfigError: the source gives another number of samples than it has.
    """
    if isinstance(source, LoaderSource):
        numbered = replace(
            source, samples=_Numbered(source.samples), collate=_NumberedCollate(source.collate)
        )
        for inputs, (numbers, targets) in numbered.batches(spec, batch_size):
            yield numbers.cpu(), Batch(inputs, targets)
        return
    end = 0
    for batch in source.batches(spec, batch_size):
        start, end = end, end + batch.num_samples
        yield torch.arange(start, end), batch
    if end != source.num_samples:
        kind = type(source).__name__
        raise ConfigError("data", f"{kind}.batches gives {end} samples, but it has {source.num_samples}")


@dataclass(frozen=True)
class _Numbered:
    """A set of samples whose targets are (number of the sample, target)."""

    samples: SampleSet

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int, /) -> tuple[Any, tuple[int, Any]]:
        raw, target = self.samples[index]
        return raw, (index, target)


@dataclass(frozen=True)
class _NumberedCollate:
    """Makes a batch without the numbers, and adds them to its targets."""

    collate: Collate

    def __call__(self, samples: list[tuple[Tensors, Tensors]]) -> tuple[Tensors, Tensors]:
        inputs, targets = self.collate([(raw, target) for raw, (_, target) in samples])
        return inputs, (torch.tensor([number for _, (number, _) in samples]), targets)
