"""A copy of a run's task, on which hooks compute gradients without touching the training."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydrant.batch import Batch, Outcome, as_real, in_dtype, map_tensors
from hydrant.errors import ConfigError
from hydrant.tasks.base import eval_mode
from hydrant.training.plan import Plan
from hydrant.training.trainer import Trainer


def check_one_gradient(plan: Plan) -> None:
    """Check that the training follows one gradient: that of the sum of all losses, whose weights each rank has.

    Raises:
        ConfigError: the weights are sharded, or optimizers follow different losses.
    """
    if plan.parallel.is_sharded:
        raise ConfigError(
            "_target_", "needs whole weights on each rank, not shards", remedy="use parallel=ddp or single"
        )
    losses = {None if e.losses is None else frozenset(e.losses) for e in plan.optimizers.entries.values()}
    if len(losses) > 1:
        message = "measures the sum of all losses, but the optimizers follow different ones"
        raise ConfigError("_target_", message, remedy="leave this hook out")


class EagerCopy:
    """A task with copies of the weights and buffers of a run, in full precision. Use it in `full_precision`.

    Args:
        task: of the run.
        dtype: of the weights and inputs.
    """

    def __init__(self, task: nn.Module, dtype: torch.dtype) -> None:
        self._task, self._dtype = task, dtype
        self._weights = {
            name: as_real(in_dtype(p.detach().clone(), dtype)).requires_grad_(p.requires_grad)
            for name, p in task.named_parameters()
        }
        self._complex = {name for name, p in task.named_parameters() if p.is_complex()}
        self._buffers = {n: in_dtype(b.detach().clone(), dtype) for n, b in task.named_buffers()}
        self.parameters = [p for p in self._weights.values() if p.requires_grad]
        """Those that are trained; complex ones as pairs of real numbers."""

    def loss(self, batch: Batch) -> tuple[Tensor, int | Tensor]:
        """Return the mean loss of a batch, and the number of its targets."""
        weights = {
            name: torch.view_as_complex(weight) if name in self._complex else weight
            for name, weight in self._weights.items()
        }
        converted = map_tensors(partial(in_dtype, dtype=self._dtype), batch)
        outcome: Outcome = functional_call(self._task, weights | self._buffers, (converted,))
        return outcome.total_loss(), outcome.num_targets

    def gradients(self, loss: Tensor, *, create_graph: bool = False) -> Sequence[Tensor]:
        """Return the gradient of a loss by each parameter."""
        return torch.autograd.grad(
            loss, self.parameters, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )


@contextmanager
def full_precision(trainer: Trainer, *, is_training: bool) -> Generator[None]:
    """Compute gradients neither compiled nor by autocast, in this mode, with attention that has second derivatives."""
    plan = trainer.plan
    with (
        trainer.pace.paused(),
        nullcontext() if is_training else eval_mode(trainer.task),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        plan.compilation.force_eager(),
        torch.autocast(plan.world.device.type, enabled=False),
    ):
        yield


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return all numbers in a row."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
