"""The digits as two tensors for other loops, and as data of Hydrant with a wrapped stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydrant.clock import Steps
from hydrant.data import Data, Source, StreamSpec, digits
from hydrant.data.base import Stream

HOST = StreamSpec(0, Steps.constant(64), 64, 0, 1, torch.device("cpu"))


def samples(source: Source) -> tuple[Tensor, Tensor]:
    """Return all samples, normalised: inputs (N, 1, 8, 8) and targets (N,)."""
    (batch,) = source.batches(HOST, source.num_samples)
    return batch.inputs, batch.targets


def accuracy(model: nn.Module) -> float:
    """Return the accuracy on the validation samples."""
    inputs, targets = samples(digits().val)
    with torch.no_grad():
        return (model.eval()(inputs).argmax(1) == targets).float().mean().item()


@dataclass(frozen=True)
class Wrapped:
    """A source whose stream is wrapped."""

    source: Source
    wrap: Callable[[Stream], Stream]

    @property
    def num_samples(self) -> int:
        return self.source.num_samples

    def stream(self, spec: StreamSpec) -> Stream:
        return self.wrap(self.source.stream(spec))

    def batches(self, spec: StreamSpec, batch_size: int) -> Any:
        return self.source.batches(spec, batch_size)

    def subset(self, indices: Any) -> Source:
        return self.source.subset(indices)


def wrapped_digits(wrap: Callable[[Stream], Stream], **settings: Any) -> Data:
    """Return the digits with a wrapped training stream."""
    original = digits(**settings)
    return Data(Wrapped(original.train, wrap), original.val, original.input_shape, original.num_classes)
