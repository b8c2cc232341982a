"""Set the first weights of a model by the training images."""

from __future__ import annotations

from typing import Any, cast

from hydrant.checks import check_number
from hydrant.errors import ConfigError
from hydrant.training.plan import Plan
from hydrant.training.prepare.dry_run import read_samples
from hydrant.training.trainer import Trainer


class Whitening:
    """Calls `model.whiten(images)` with the first training images, normalized, when a run begins anew.

    Args:
        num_samples: training images whose patches are whitened.

    Raises:
        ConfigError: `num_samples` is below 1.
    """

    def __init__(self, *, num_samples: int) -> None:
        check_number("num_samples", num_samples, least=1)
        self._num_samples = num_samples

    def check(self, plan: Plan) -> None:
        """Check that the model can be whitened.

        Raises:
            ConfigError: it cannot.
        """
        if not hasattr(plan.task.model, "whiten"):
            message = "this model has no method whiten(images); leave the hook out, or choose model=airbench"
            raise ConfigError("num_samples", message)

    def on_start(self, trainer: Trainer) -> None:
        """Set the weights, unless the run resumes."""
        if trainer.state.num_updates == 0:
            data, model = trainer.plan.data, cast("Any", trainer.model)
            model.whiten(read_samples(data, data.train, self._num_samples).inputs)
