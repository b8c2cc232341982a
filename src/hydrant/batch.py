"""Batches of the data, and what a task returns for one."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hydrant.errors import ConfigError

AllReduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks."""

Tensors = Any
"""A tensor, or a dict, tuple, list or dataclass of `Tensors`. Other values in it, such as strings, stay as they are."""


class Batch(NamedTuple):
    """Samples on the device of the run. The first dimension of every tensor is the batch."""

    inputs: Tensors  # images: (B, *input_shape), float32
    targets: Tensors  # class indices: (B,), int64

    @property
    def num_samples(self) -> int:
        """B, the number of samples.

        Raises:
            ConfigError: no tensor has a dimension for the samples.
        """
        if isinstance(self.inputs, Tensor) and self.inputs.ndim:  # at once, because each update asks for it
            return len(self.inputs)
        sides = next((len(tensor) for tensor in tensors_of(self) if tensor.ndim), None)
        if sides is None:
            raise ConfigError("data", "no tensor of a batch has a dimension for its samples")
        return sides


def tensors_of(tree: Tensors) -> Iterator[Tensor]:
    """Yield every tensor, in the order of the fields.

    >>> list(tensors_of({"ids": torch.tensor([3]), "texts": ["a"], "mask": (torch.tensor([True]),)}))
    [tensor([3]), tensor([True])]
    """
    return (leaf for leaf in leaves_of(tree) if isinstance(leaf, Tensor))


def leaves_of(tree: Tensors) -> Iterator[Any]:
    """Yield every tensor and every other value that is no dict, tuple, list or dataclass."""
    children = _children(tree)
    if children is None:
        yield tree
    else:
        for child in children:
            yield from leaves_of(child)


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return the same structure with every tensor replaced by the result of a function.

    >>> map_tensors(lambda tensor: tensor + 1, {"ids": torch.tensor([3]), "texts": ["a"]})
    {'ids': tensor([4]), 'texts': ['a']}
    """
    if isinstance(tree, Tensor):
        return function(tree)
    children = [map_tensors(function, child) for child in _children(tree) or ()]
    if isinstance(tree, Mapping):
        return dict(zip(tree, children, strict=True))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = (field.name for field in dataclasses.fields(tree))
        return dataclasses.replace(tree, **dict(zip(names, children, strict=True)))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*children)
    return type(tree)(children) if isinstance(tree, (list, tuple)) else tree


def is_inexact(tensor: Tensor) -> bool:
    """Return whether a tensor holds real or complex numbers, which gradients and averages are taken of."""
    return tensor.is_floating_point() or tensor.is_complex()


def as_real(tensor: Tensor) -> Tensor:
    """Return complex numbers as pairs of real ones in a last dimension, and others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return real numbers in this dtype, complex ones as pairs of it if it is float64, and others as they are."""
    if tensor.is_complex() and dtype is torch.float64:
        return tensor.to(torch.complex128)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def widened(tensor: Tensor) -> Tensor:
    """Return numbers of fewer than 32 bits as float32, and others as they are.

    >>> widened(torch.ones(1, dtype=torch.bfloat16)).dtype, widened(torch.ones(1, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


def with_tensors(tree: Tensors, tensors: Iterable[Tensor]) -> Tensors:
    """Return the same structure with other tensors, in the order of `tensors_of`."""
    iterator = iter(tensors)
    return map_tensors(lambda _: next(iterator), tree)


def whole_batch(of_ranks: Sequence[Sequence[Tensors]]) -> Tensors:
    """Return the tensors of the whole batch of an update, from those of the micro-batches of each rank; None for none.

    >>> whole_batch([[torch.tensor([0]), torch.tensor([2])], [torch.tensor([1]), torch.tensor([3])]])
    tensor([0, 1, 2, 3])
    """
    parts = [part for of_step in zip(*of_ranks, strict=True) for part in of_step]
    columns = zip(*map(tensors_of, parts), strict=True)
    return with_tensors(parts[0], map(torch.cat, columns)) if parts else None


def split_batch(tree: Tensors, size: int, count: int) -> Sequence[Tensors]:
    """Split every tensor into `count` parts of `size` samples, and return these parts."""
    if isinstance(tree, Tensor):
        return torch.unsafe_split(tree, size)  # autograd forbids in-place writes into the views of `split`
    parts = [torch.unsafe_split(tensor, size) for tensor in tensors_of(tree)]
    return [with_tensors(tree, [tensors[n] for tensors in parts]) for n in range(count)]


def _children(tree: Tensors) -> Iterable[Tensors] | None:
    if isinstance(tree, Mapping):
        return tree.values()
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    return tree if isinstance(tree, (list, tuple)) else None


class Outcome(NamedTuple):
    """What a task returns for one batch. Scalars (shape ()) are means over the `num_targets` targets of the batch.

    The loss of an update is the mean over its targets, however many micro-batches and ranks they are divided among. If
    `num_targets` depends on the values of a batch, such as a mask, it is a tensor: reading it would wait for the
    device.

    If the batch has no targets, scalars may be NaN, but with sharded weights their gradients may not. If `num_targets`
    is a tensor, losses are finite even without targets: divide by `num_targets.clamp(min=1)`.

    A measurement may also be a bool tensor of any shape, such as which targets were predicted correctly. Its logged
    value is the fraction that is true. The fractions of many updates are computed together, which saves kernel
    launches.

    What is `carried`, such as the state of a recurrent network, is the `carried` of the task at the same places of the
    next update's batch.
    """

    losses: dict[str, Tensor]  # their sum is backpropagated, and logged as `loss`
    measurements: dict[str, Tensor]
    predictions: Tensors  # (B, ...), detached: for metrics that are not means
    num_targets: int | Tensor  # a tensor is an integer of shape (); the type is the same for every batch
    carried: Tensors = None  # (B, ...) each, which are detached; None: nothing

    def total_loss(self) -> Tensor:
        """Return the sum of the losses, shape ()."""
        return functools.reduce(operator.add, self.losses.values())

    def scalars(self, *, is_part: bool = False) -> dict[str, Tensor]:
        """Return what is logged as a mean: the total loss, each loss if there are several, and the measurements.

        In an evaluation there may be no losses.

        Args:
            is_part: there are other losses, which a forward pass in another turn returns.
        """
        parts = self.losses if is_part or len(self.losses) > 1 else {}
        total = {"loss": self.total_loss()} if self.losses else {}
        return {**total, **parts, **self.measurements}


def mean_loss(outcomes: Sequence[Outcome], all_reduce: AllReduce) -> Tensor:
    """Return the mean loss over the targets of all ranks, shape (). It is the same number on every rank."""
    sums = outcomes[0].total_loss().new_zeros(2, dtype=torch.float64)  # of the losses, and of the targets
    for outcome in outcomes:
        if isinstance(outcome.num_targets, Tensor) or outcome.num_targets:
            sums[0] += outcome.total_loss().detach().squeeze() * outcome.num_targets
            sums[1] += outcome.num_targets
    loss, num_targets = all_reduce(sums)
    return loss / num_targets.clamp(min=1)
