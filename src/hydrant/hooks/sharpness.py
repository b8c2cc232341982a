"""The sharpness of the training loss: the largest eigenvalue of its Hessian."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch, as_real
from hydrant.checks import check_number
from hydrant.data import IterableSource
from hydrant.errors import ConfigError
from hydrant.hooks.eager_copy import EagerCopy, check_one_gradient, flat, full_precision
from hydrant.training.plan import Plan
from hydrant.training.splits import limit_samples
from hydrant.training.trainer import Trainer

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

    Raises:
        ConfigError: a number is below 1.
    """

    def __init__(
        self, *, every: Any, num_samples: int | None, max_iterations: int, float64: bool, preconditioned: bool
    ) -> None:
        for key, value in {"num_samples": num_samples, "max_iterations": max_iterations}.items():
            check_number(key, value, least=1)
        self.every = every
        self._num_samples, self._max_iterations = num_samples, max_iterations
        self._dtype, self._is_preconditioned = torch.float64 if float64 else torch.float32, preconditioned

    def check(self, plan: Plan) -> None:
        """Check that the run has samples that can be read again, and the weights and states that are needed.

        Raises:
            ConfigError: it has not.
        """
        check_one_gradient(plan)
        if isinstance(plan.train, IterableSource):
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
        samples = limit_samples(plan.train, self._num_samples)
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
