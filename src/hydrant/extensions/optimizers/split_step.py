"""The step of a Muon optimizer, spread over the ranks: each rank orthogonalises its share of the matrices."""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.optimizers.kernels import OptimizerStep
from hydrant.training.distributed.world import World

_MOMENTUM = "momentum_buffer"
"""The state key that these optimizers have for matrices only."""


class SplitStep(OptimizerStep):
    """Each rank updates its share of the matrices, and receives the others. All ranks update the other weights.

    The result is bit for bit that of `OptimizerStep`, if all ranks have the same gradients. Each rank also advances the
    momentum of the matrices that it receives, which costs little. So the state of each rank is complete, and
    checkpoints are those of a step that is not split. The first update of a matrix makes its state, so all ranks make
    it.
    """

    def __init__(self, optimizer: Optimizer, world: World) -> None:
        super().__init__(optimizer)
        self._rank, self._num_ranks = world.rank, world.world_size

    def __call__(self) -> None:
        matrices = self._matrices()
        owners = assign([p.shape for p in matrices], self._num_ranks)
        received = [
            (p, p.grad, momentum)
            for (p, momentum), owner in zip(matrices.items(), owners, strict=True)
            if owner != self._rank
        ]
        for p, _, _ in received:
            p.grad = None  # so that the optimizer leaves it out
        super().__call__()
        for p, gradient, momentum in received:
            p.grad = gradient
            self._optimizer.state[p][_MOMENTUM].lerp_(gradient, 1 - momentum)
        self._exchange(list(matrices), owners)

    def _matrices(self) -> dict[nn.Parameter, float]:
        """Return the matrices that have a gradient and a state, with the decay of their momentum."""
        state: Mapping[Any, Mapping[str, Any]] = self._optimizer.state
        return {
            p: group["momentum"]
            for group in self._optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and _MOMENTUM in state.get(p, {})
        }

    @torch.no_grad()
    def _exchange(self, matrices: Sequence[nn.Parameter], owners: Sequence[int]) -> None:
        """Give all ranks what the owner of a matrix has computed: the matrix, and its state except the momentum."""
        tensors = defaultdict[tuple[torch.device, torch.dtype], list[list[Tensor]]](
            lambda: [[] for _ in range(self._num_ranks)]
        )
        for p, owner in zip(matrices, owners, strict=True):
            state: Mapping[str, Any] = self._optimizer.state[p]
            entries = (value for name, value in state.items() if name != _MOMENTUM)
            for tensor in (p, *(value for value in entries if isinstance(value, Tensor))):
                tensors[tensor.device, tensor.dtype][owner].append(tensor)
        for by_rank in tensors.values():
            _all_gather(by_rank, self._rank)


def assign(shapes: Sequence[torch.Size], num_ranks: int) -> list[int]:
    """Return the rank that orthogonalises each matrix, so that all ranks have about the same work."""
    work = [shape[0] * shape[1:].numel() * min(shape[0], shape[1:].numel()) for shape in shapes]
    loads = [(0, rank) for rank in range(num_ranks)]
    owners = [0] * len(shapes)
    for position in sorted(range(len(shapes)), key=lambda position: -work[position]):
        load, owners[position] = loads[0]
        heapq.heapreplace(loads, (load + work[position], owners[position]))
    return owners


def _all_gather(by_rank: Sequence[Sequence[Tensor]], rank: int) -> None:
    """Copy the tensors that each rank has to the others, in place. All have the same device and dtype."""
    size = max(sum(tensor.numel() for tensor in tensors) for tensors in by_rank)
    sent = next(tensor for tensors in by_rank for tensor in tensors).new_zeros(size)
    if by_rank[rank]:
        flat = torch.cat([tensor.reshape(-1) for tensor in by_rank[rank]])
        sent[: len(flat)] = flat
    gathered = sent.new_empty(len(by_rank) * size)
    dist.all_gather_into_tensor(gathered, sent)
    for owner, (tensors, values) in enumerate(zip(by_rank, gathered.split(size), strict=True)):
        if owner == rank:
            continue
        start = 0
        for tensor in tensors:
            tensor.copy_(values[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()
