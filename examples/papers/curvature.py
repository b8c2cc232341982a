"""Hooks that measure the largest eigenvalue of the Hessian, and the noise scale of the gradient."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydrant import seeding
from hydrant.batch import Batch, Outcome, as_real, in_dtype, map_tensors
from hydrant.errors import ConfigError
from hydrant.extensions.streams import IterableSource
from hydrant.files.plain_values import PositiveInt, RatioBelowOne
from hydrant.tasks.base import eval_mode
from hydrant.training.trainer import Plan, Trainer


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
    """Compute gradients without autocast, in this mode, with attention that has second derivatives."""
    plan = trainer.plan
    with (
        trainer.pace.paused(),
        nullcontext() if is_training else eval_mode(trainer.task),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        torch.autocast(plan.world.device.type, enabled=False),
    ):
        yield


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return all numbers in a row."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class GradientNoise:
    """Logs the simple noise scale, at about which number of samples larger batches stop to pay, every `every`.

    These are the estimates of McCandlish et al., "An empirical model of large-batch training", 2018, appendix A.1, from
    the mean squared norm of the gradients of the micro-batches and that of their mean, before clipping:

    - `gradient_noise/squared_norm`: of the gradient over all samples, without bias, so it may be below 0;
    - `gradient_noise/variance`: the trace of the covariance of the gradients of single samples, without bias;
    - `gradient_noise/scale`: the ratio of the moving averages of variance and squared norm, in samples; left out while
      the average of the squared norm is not above 0. Values that are NaN or infinite are in no average.

    An update that is measured computes its gradients a second time, in float32 and not compiled, with the same dropout.
    The training does not change. Micro-batches are taken to have the same number of targets.

    Args:
        every: a duration; None: each update.
        decay: of the moving averages, from one measurement to the next, at least 0 and below 1.
    """

    def __init__(self, *, every: Any, decay: RatioBelowOne) -> None:
        self.every, self._decay = every, decay
        self._averages: dict[str, float] = {}

    def check(self, plan: Plan) -> None:
        """Check that an update has several micro-batches, which can be read again.

        Raises:
            ConfigError: it has not.
        """
        check_one_gradient(plan)
        spec = plan.spec
        if min(spec.batch_sizes.values) < 2 * spec.micro_batch_size:
            num = min(spec.batch_sizes.values)
            message = f"needs two micro-batches or more, of all ranks, in an update of {num} samples"
            size = next((n for n in range(num // 2, 0, -1) if spec.micro_batch_size % n == 0), 1)
            raise ConfigError("_target_", message, remedy=f"write micro_batch_size={size} or a divisor of it")

    def before_update(self, trainer: Trainer, num_updates: int) -> None:
        """Measure the gradients of the coming update, and log."""
        plan, spec = trainer.plan, trainer.plan.spec
        copied = EagerCopy(trainer.task, torch.float32)
        size, device = sum(p.numel() for p in copied.parameters), plan.world.device
        # The sum of the gradients, and that of their squared norms.
        sums = torch.zeros(size + 1, dtype=torch.float64, device=device)
        with full_precision(trainer, is_training=True):
            for micro_step, batch in enumerate(trainer.stream.micro_batches(num_updates - 1)):
                number = micro_step * spec.world_size + spec.rank
                batch = plan.mixing(batch, spec.seed, num_updates - 1, number)
                seeding.seed_micro_step(spec.seed, num_updates - 1, number, device)
                gradient = flat(copied.gradients(copied.loss(batch)[0])).double()
                sums += torch.cat([gradient, gradient.square().sum().view(1)])
        sums = plan.parallel.all_reduce(sums)
        large = spec.batch_sizes.value(num_updates - 1)
        count = large / spec.micro_batch_size
        squares = float(sums[-1] / count), float((sums[:-1] / count).square().sum())
        values: dict[str, float] = dict(
            zip(("squared_norm", "variance"), estimates(*squares, spec.micro_batch_size, large), strict=True)
        )
        if all(map(math.isfinite, values.values())):  # else a batch that skip_non_finite leaves out
            for name, value in values.items():
                self._averages[name] = (
                    self._decay * self._averages.get(name, value) + (1 - self._decay) * value
                )
        if self._averages.get("squared_norm", 0.0) > 0:
            values["scale"] = self._averages["variance"] / self._averages["squared_norm"]
        trainer.log.row({f"gradient_noise/{name}": value for name, value in values.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self._averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._averages = dict(state["averages"])


def estimates(of_small: float, of_large: float, small: int, large: int) -> tuple[float, float]:
    """Return unbiased estimates of the squared norm of the true gradient, and of the trace of the covariance.

    The expected squared norm of the gradient of B samples is `squared_norm + variance / B`.

    Args:
        of_small, of_large: squared norms of the gradients of batches of both sizes.
        small, large: their numbers of samples.

    >>> estimates(10.0 + 8.0 / 2, 10.0 + 8.0 / 16, 2, 16)
    (10.0, 8.0)
    """
    squared_norm = (large * of_large - small * of_small) / (large - small)
    return squared_norm, (of_small - of_large) / (1 / small - 1 / large)


_TOLERANCE = 1e-4  # of the eigenvalue, relative


class Sharpness:
    """Logs `sharpness/hessian`, the largest eigenvalue of the Hessian of the mean training loss, every `every`.

    Gradient descent with the learning rate lr is stable on a quadratic up to 2 / lr, and full-batch training often
    hovers there (Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021).
    With `preconditioned`, it also logs `sharpness/preconditioned`, of Adam's preconditioned Hessian, whose bound is
    38 / lr for beta1 = 0.9 (Cohen et al., "Adaptive gradient methods at the edge of stability", 2022, section 3).

    The eigenvalue is found by Lanczos iterations with Hessian-vector products, each of which costs about two updates
    over the samples; no Hessian is stored, but a vector of the size of the weights for each iteration. The samples are
    not augmented, and the model is in evaluation mode: without dropout, with the running statistics of batch norm. The
    training does not change. Each rank computes the same.

    Args:
        every: a duration; None: each update.
        num_samples: the first training samples; None: all.
        max_iterations: of Lanczos; fewer if the eigenvalue is known to 1e-4.
        float64: compute in double precision.
        preconditioned: measure Adam's preconditioned Hessian too, of `optimizer=adam` and `adamw`.
    """

    def __init__(
        self,
        *,
        every: Any,
        num_samples: PositiveInt | None,
        max_iterations: PositiveInt,
        float64: bool,
        preconditioned: bool,
    ) -> None:
        self.every = every
        self._num_samples, self._max_iterations = num_samples, max_iterations
        self._dtype, self._is_preconditioned = torch.float64 if float64 else torch.float32, preconditioned

    def check(self, plan: Plan) -> None:
        """Check that the run has samples that can be read again, and the weights and states that are needed.

        Raises:
            ConfigError: it has not.
        """
        check_one_gradient(plan)
        if isinstance(plan.data.train, IterableSource):
            raise ConfigError(
                "num_samples", "needs samples that can be read again, which data=stream has not"
            )
        optimizers = [entry.optimizer for entry in plan.optimizers.entries.values()]
        if self._is_preconditioned and not all(isinstance(o, torch.optim.Adam) for o in optimizers):
            names = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
            raise ConfigError(
                "preconditioned", f"needs optimizer=adam or adamw, not {names}", remedy="give false"
            )
        if self._is_preconditioned and any(group["amsgrad"] for o in optimizers for group in o.param_groups):
            raise ConfigError(
                "preconditioned", "does not know amsgrad", remedy="give false, or optimizer.amsgrad=false"
            )

    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """Measure and log."""
        plan = trainer.plan
        copied = EagerCopy(trainer.task, self._dtype)
        spec = dataclasses.replace(plan.spec, rank=0, world_size=1)
        most = min(self._num_samples or plan.data.train.num_samples, plan.data.train.num_samples)
        samples = plan.data.train.subset(range(most))
        batches = list(samples.batches(spec, min(plan.config["eval_batch_size"], samples.num_samples)))
        generator = torch.Generator().manual_seed(seeding.hash_of(plan.config["seed"], num_updates))
        size = sum(p.numel() for p in copied.parameters)
        start = torch.randn(size, generator=generator, dtype=torch.float64).to(plan.world.device, self._dtype)
        with full_precision(trainer, is_training=False):

            def product(vector: Tensor) -> Tensor:
                return _hessian_product(copied, batches, vector)

            row = {"sharpness/hessian": largest_eigenvalue(product, start, self._max_iterations)}
            if self._is_preconditioned:
                scale = _preconditioner(trainer).to(start).rsqrt()
                row["sharpness/preconditioned"] = largest_eigenvalue(
                    lambda vector: scale * product(scale * vector), start, self._max_iterations
                )
        trainer.log.row(row)


def largest_eigenvalue(product: Callable[[Tensor], Tensor], start: Tensor, max_iterations: int) -> float:
    """Return the largest eigenvalue of a symmetric matrix by Lanczos iterations (Golub & Van Loan, section 10.1).

    Each vector is made orthogonal to all before it. The iterations end if the residual of the eigenvalue is small, or
    if the vectors span a subspace that the matrix maps into itself.

    Args:
        product: the matrix times a vector.
        start: (N,), with a part in the direction of the eigenvector.
        max_iterations: products, at most N are made.
    """
    vectors, diagonal, beside = [start / start.norm()], list[float](), list[float]()
    largest = 0.0
    for _ in range(min(max_iterations, len(start))):
        image = product(vectors[-1])
        diagonal.append(float(image @ vectors[-1]))
        basis = torch.stack(vectors)
        for _ in range(2):  # the second time removes what rounding left
            image = image - basis.T @ (basis @ image)
        tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        if beside:
            between = torch.diag(torch.tensor(beside, dtype=torch.float64), 1)
            tridiagonal = tridiagonal + between + between.T
        if not tridiagonal.isfinite().all():
            return float("nan")
        values, coordinates = torch.linalg.eigh(tridiagonal)
        largest, norm = float(values[-1]), float(image.norm())
        spread = float(values.abs().max())
        if norm * abs(float(coordinates[-1, -1])) <= _TOLERANCE * abs(largest) or norm <= 1e-7 * spread:
            break
        beside.append(norm)
        vectors.append(image / norm)
    return largest


def _hessian_product(copied: EagerCopy, batches: Sequence[Batch], vector: Tensor) -> Tensor:
    """Return the Hessian of the mean loss over all targets, times a vector."""
    parts = vector.split([p.numel() for p in copied.parameters])
    total, num_targets = torch.zeros_like(vector), torch.zeros((), dtype=torch.float64, device=vector.device)
    for batch in batches:
        loss, count = copied.loss(batch)
        gradients = copied.gradients(loss, create_graph=True)
        slope = torch.stack([(g.reshape(-1) * v).sum() for g, v in zip(gradients, parts, strict=True)]).sum()
        if slope.requires_grad:  # else the loss is linear
            total += flat(copied.gradients(slope)) * count
        num_targets += count
    return total / num_targets.to(vector.dtype)


def _preconditioner(trainer: Trainer) -> Tensor:
    """Return what Adam's last update divided the average of the gradients by, without lr, for each weight."""
    states = dict[Tensor, Tensor]()
    for entry in trainer.optimizers.entries.values():
        for group in entry.optimizer.param_groups:
            for parameter in group["params"]:
                state, (beta1, beta2) = entry.optimizer.state[parameter], map(float, group["betas"])
                if state:
                    step = float(state["step"])
                    root = (as_real(state["exp_avg_sq"]).double() / (1 - beta2**step)).sqrt()
                    states[parameter] = (1 - beta1**step) * (root + group["eps"])
    trained = [p for p in trainer.task.parameters() if p.requires_grad]
    return flat([states.get(p, torch.full_like(as_real(p), torch.inf, dtype=torch.float64)) for p in trained])
