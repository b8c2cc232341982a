"""Pictures and texts that a function of the user makes with the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from hydrant import seeding
from hydrant.training.evaluation import eager_evaluation
from hydrant.training.plan import Plan
from hydrant.training.trainer import Trainer


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
