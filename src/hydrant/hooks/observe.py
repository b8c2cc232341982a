"""Hooks that observe a run: sizes of weights, gradients and updates; pictures and texts of the user."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import as_real
from hydrant.optimizers.clipping import is_sharded, local_tensors
from hydrant.training.reports import eager_evaluation
from hydrant.training.trainer import Plan, Trainer

_EPS = 1e-30  # instead of a division by 0


class Diagnostics:
    """Logs, for each layer with weights that train, every `every`:

    - `update_ratio/<layer>`: the 2-norm of the update over that of the weights before it. 1e-3 is usual.
    - `weight_rms/<layer>`, `gradient_rms/<layer>`: root mean squares; of the gradient after clipping.
    - `gradient_cosine/<layer>`: the cosine of the angle between this gradient and the last logged one.
      Near 1 the gradients agree, so a larger lr may do; below 0 the updates go back and forth.

    It copies the weights during an update that is logged, and keeps a copy of the gradients until the next such update,
    also in checkpoints. Of sharded weights, each rank copies its shard. Other updates cost nothing.

    Args:
        every: a duration; None: each update.
    """

    def __init__(self, *, every: Any) -> None:
        self.every = every
        self._weights: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}  # of the update that was logged last

    def before_update(self, trainer: Trainer, num_updates: int) -> None:
        """Copy the weights."""
        del num_updates
        self._weights = {
            n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad
        }

    @torch.no_grad()
    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """Log the numbers, with one transfer from the device."""
        del num_updates
        sums: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        for name, parameter in trainer.model.named_parameters():
            if name not in self._weights or parameter.grad is None:
                continue
            gradient = parameter.grad.detach()
            gradient = gradient.clone() if is_sharded(gradient) else gradient.to_dense().clone()
            before = self._gradients.get(name, torch.zeros_like(gradient)).to(gradient.device)
            layer = name.rpartition(".")[0] or name
            values = _sums(*local_tensors([self._weights[name], parameter, gradient, before]))
            sums[layer] = sums[layer] + values if layer in sums else values
            gradients[name] = gradient
        self._gradients, self._weights = gradients, {}
        if not sums:
            return
        totals, parallel = torch.stack(list(sums.values())), trainer.plan.parallel
        # A shard on several ranks counts several times in every sum, but not in ratios of sums.
        if parallel.is_sharded:
            totals = parallel.all_reduce(totals.to(trainer.plan.world.device))
        rows: list[list[float]] = totals.tolist()
        for layer, row in zip(sums, rows, strict=True):
            trainer.log.row(_metrics(layer, *row))

    def state_dict(self) -> dict[str, Any]:
        return {"gradients": self._gradients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._gradients = dict(state["gradients"])


def _sums(old: Tensor, new: Tensor, gradient: Tensor, before: Tensor) -> Tensor:
    """Return the count and the sums of squares and products that the numbers of a layer are made of, (6,) float64."""
    old, new, gradient, before = (as_real(t).double() for t in (old, new, gradient, before))
    change = new - old
    products = [old * old, change * change, gradient * gradient, before * before, gradient * before]
    return torch.stack([old.new_tensor(old.numel()), *(product.sum() for product in products)])


def _metrics(
    layer: str, count: float, weights: float, changes: float, gradients: float, before: float, product: float
) -> dict[str, float]:
    metrics = {
        f"update_ratio/{layer}": (changes / max(weights, _EPS)) ** 0.5,
        f"weight_rms/{layer}": (weights / count) ** 0.5,
        f"gradient_rms/{layer}": (gradients / count) ** 0.5,
    }
    if before and gradients:  # there is an earlier gradient, and the angle exists
        metrics[f"gradient_cosine/{layer}"] = product / (gradients * before) ** 0.5
    return metrics


class Samples:
    """Calls `function(model)` after each evaluation, and logs the pictures and texts that it returns.

    The model is eager and as in the evaluation: in evaluation mode, without gradients, in the precision of the run. The
    random numbers of torch are the same each time, so the samples of two updates can be compared.

    Args:
        function: called with the model; returns pictures and texts by name. A picture is what `trainer.log.picture`
            takes.
    """

    def __init__(self, *, function: Callable[[nn.Module], Mapping[str, Any]]) -> None:
        self._function = function

    def check(self, plan: Plan) -> None:
        """Check that the run is evaluated.

        Raises:
            ConfigError: it is not.
        """
        plan.check_evaluates("samples are made after evaluations")

    def on_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """Make the samples and log them."""
        del row
        plan = trainer.plan
        seeding.seed_evaluation(plan.world.rank, plan.world.device)
        with eager_evaluation(trainer):
            samples = self._function(trainer.model)
        for name, sample in samples.items():
            (trainer.log.text if isinstance(sample, str) else trainer.log.picture)(name, sample)
