"""A hook that freezes weights by name."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydrant.clock import Duration
from hydrant.errors import ConfigError, first_line, log, shown, suggestion
from hydrant.training.trainer import Plan, Trainer


@dataclass(frozen=True)
class _Stage:
    match: str
    until: Any = None

    def __post_init__(self) -> None:
        re.compile(self.match)
        if self.until is not None:
            Duration.parse(self.until, "stages")


class Freeze:
    """Keeps weights as they are until an update, or for the whole run.

    A frozen weight has no gradient, so no optimizer changes it, not even by weight decay, and its optimizer state
    begins when it trains. What is frozen depends on the number of updates only, so a resumed run continues exactly.
    Running statistics of batch norm are not weights and continue to be updated. A run has at most one such hook.

    Args:
        stages: each has `match`, a regular expression for the beginning of names, and maybe `until`, a duration.
            Without `until` it holds for the whole run. A weight is frozen as long as any stage freezes it.

    Raises:
        ConfigError: a stage has another form.
    """

    def __init__(self, *, stages: Sequence[Any]) -> None:
        self._stages = list[_Stage]()
        for stage in stages:
            try:
                self._stages.append(_Stage(**stage))
            except (TypeError, re.error) as error:
                message = f"{shown(stage)} is not a stage: {first_line(error)}"
                raise ConfigError("stages", message, remedy="write {match: backbone, until: 2ep}") from error
        self.every = [stage.until for stage in self._stages if stage.until is not None]
        self._ends: list[float] = []  # the first update that trains the weights of each stage
        self._trainable: list[str] = []  # the parameters that the model itself trains

    def check(self, plan: Plan) -> None:
        """Check that the stages fit the model and the run.

        Raises:
            ConfigError: a pattern matches nothing, the weights cannot be frozen, or another hook freezes weights too.
        """
        if len(hooks := plan.hooks.of(Freeze)) > 1:
            message = f"the hooks {' and '.join(hooks)} all freeze weights"
            raise ConfigError("stages", message, remedy="put all stages into one hook")
        if plan.optimizers.retains_graph:
            message = "weights cannot be frozen if optimizers follow single losses"
            raise ConfigError("stages", message, remedy="leave losses out")
        self._ends = [
            math.inf if stage.until is None else plan.clock.updates(stage.until, "stages")
            for stage in self._stages
        ]
        names = [name for name, p in plan.task.model.named_parameters() if p.requires_grad]
        for stage in self._stages:
            if not any(re.match(stage.match, name) for name in names):
                hint = suggestion(stage.match, names, "Weights")
                raise ConfigError("stages", f"{shown(stage.match)} matches no trained weight", remedy=hint)

    def on_start(self, trainer: Trainer) -> None:
        """Freeze the weights that are frozen at the update where the run starts or resumes."""
        self._trainable = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
        self._apply(trainer, trainer.state.num_updates)

    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """Unfreeze the weights whose stages end at this update."""
        self._apply(trainer, num_updates)

    def _apply(self, trainer: Trainer, num_updates: int) -> None:
        parameters = dict(trainer.model.named_parameters())
        stages = [s for s, end in zip(self._stages, self._ends, strict=True) if num_updates < end]
        for name in self._trainable:
            parameters[name].requires_grad_(not any(re.match(stage.match, name) for stage in stages))
        # DDP reduces only those gradients that were needed when it was made.
        trainer.trained = trainer.plan.parallel.wrap_again(trainer.task)
        total = sum(parameters[name].numel() for name in self._trainable)
        num_frozen = sum(parameters[n].numel() for n in self._trainable if not parameters[n].requires_grad)
        log.info(
            "from update %d: %s of %s weights are frozen", num_updates + 1, f"{num_frozen:,}", f"{total:,}"
        )
