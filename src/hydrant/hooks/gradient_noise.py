"""The simple noise scale of the gradients, from the micro-batches of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from hydrant import seeding
from hydrant.checks import check_number
from hydrant.errors import ConfigError
from hydrant.hooks.eager_copy import EagerCopy, check_one_gradient, flat, full_precision
from hydrant.training.plan import Plan
from hydrant.training.trainer import Trainer


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

    Raises:
        ConfigError: `decay` is out of its range.
    """

    def __init__(self, *, every: Any, decay: float) -> None:
        check_number("decay", decay, least=0, below=1)
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
            remedy = f"write micro_batch_size={size} or a divisor of it"
            raise ConfigError("_target_", message, remedy=remedy)

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
