"""The training loop. It receives built objects; only a few settings are read from the config while it trains."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch, Outcome, is_inexact, map_tensors, split_batch, tensors_of, whole_batch
from hydrant.clock import NOTHING, Due
from hydrant.errors import Interrupted, NonFiniteError
from hydrant.tasks.base import Task, copied_buffers, kept_buffers
from hydrant.training import reports
from hydrant.training.metrics import Pace
from hydrant.training.trainer import Trainer, TrainState
from hydrant.training.update import Turn, Update


def train(trainer: Trainer) -> None:
    """Advance a run to its last update, or to the update where `patience`, a pruner or a hook ends it.

    `state.num_updates` counts completed optimizer updates. A row or a checkpoint of `num_updates` describes the
    parameters after that many updates: 0 is the initialisation, `total_updates` the result.

    Raises:
        NonFiniteError: a metric became NaN or infinite; the last good checkpoint is kept.
        Interrupted: the ranks agreed to stop, because one received a signal; the state is saved.
    """
    begin_training(trainer)
    while not is_over(trainer):
        train_update(trainer, is_last=is_last_update(trainer))
    end_training(trainer)


def begin_training(trainer: Trainer) -> None:
    """Do what comes before the first update."""
    state = trainer.state
    is_evaluated = state.num_updates == 0 and trainer.plan.intervals.eval_every.is_on
    row = evaluate(trainer) if is_evaluated else {}  # so that every curve starts at the untrained model
    reports.log_row(trainer, row)
    if is_evaluated:
        reports.follow_evaluation(trainer, row)
    trainer.pace = Pace(state.num_updates, trainer.plan.world.device)


def end_training(trainer: Trainer) -> None:
    """Do what comes after the last update."""
    trainer.plan.hooks.call("on_end", trainer)
    reports.log_row(trainer, {})


def train_update(trainer: Trainer, *, is_last: bool) -> None:
    """Make one update, and do what is due after it."""
    due = begin_update(trainer, is_last=is_last)
    finish_update(trainer, due, make_update(trainer, measure=due.log), is_last=is_last)


def begin_update(trainer: Trainer, *, is_last: bool) -> Due:
    """Return what is due after the next update, and call the hooks that are due before it."""
    due = trainer.plan.intervals.due(trainer.state.num_updates + 1, is_last=is_last)
    if due.hooks:
        call_hooks(trainer, "before_update", trainer.state.num_updates + 1, due)
    return due


def finish_update(trainer: Trainer, due: Due, update: Update, *, is_last: bool) -> None:
    """Do what is due after an update.

    Raises:
        NonFiniteError, Interrupted: as `train`.
    """
    trainer.plan.compilation.check_recompiles(trainer.state.num_updates)
    if trainer.state.micro_batch_size != trainer.plan.spec.micro_batch_size:
        reports.log_micro_batch_size(trainer)
    trainer.logger.advance()
    if due is not NOTHING or update.stop is not None or (is_last and trainer.is_continued):
        report_and_save(trainer, due, update, is_last=is_last)
    if trainer.plan.profiler.is_on:
        with trainer.pace.paused(waits=False):  # a profile shows every wait
            trainer.plan.profiler.advance()
    if update.stop is not None and not (is_last or ends_early(trainer)):
        raise Interrupted(update.stop, trainer.state.num_updates)


def make_update(trainer: Trainer, *, measure: bool) -> Update:
    """Make one update and count it. Optimizers that take turns have one after the other, on the same samples.

    Raises:
        NonFiniteError: more than `max_skipped` updates in a row were not applied.
    """
    state, optimizers = trainer.state, trainer.optimizers
    trainer.buffers.begin_update()
    updates, takes_turns = list[Update](), bool(optimizers.turns[0].name)
    for turn in optimizers.turns if takes_turns else ():
        turn.clear_gradients()  # also those of an optimizer without a turn in this update
    try:
        for turn in optimizers.cycle[state.num_updates % len(optimizers.cycle)]:
            updates.append(take_turn(trainer, turn, measure=measure))
    finally:
        if takes_turns or trainer.carried:
            task = cast("Any", trainer.task)
            task.turn = task.carried = None
    state.num_updates += 1
    applied = [update for update in updates if update.status == "applied"]
    if len(applied) == len(updates):
        state.num_skipped_in_a_row = 0
    if applied:
        carrying = [update.outcomes for update in applied if update.outcomes[0].carried is not None]
        if carrying:
            carry(trainer, carrying[-1])
        else:
            trainer.carried = []
        trainer.buffers.end_update()
    if applied or trainer.plan.averaging.counts_skipped:
        trainer.plan.averaging.update(state.num_updates)
    if not takes_turns:
        return updates[0]
    norms = {name: norm for update in updates for name, norm in update.grad_norms.items()}
    return updates[-1]._replace(grad_norms=norms)


def carry(trainer: Trainer, outcomes: Sequence[Outcome]) -> None:
    """Keep what the task carries to the next update, and give the whole of it to a task with a method `end_update`."""
    contiguous = partial(torch.clone, memory_format=torch.contiguous_format)  # as in a run that continues
    carried = [map_tensors(lambda t: contiguous(t.detach()), outcome.carried) for outcome in outcomes]
    before, now = [*tensors_of(trainer.carried)], [*tensors_of(carried)]
    if [tensor.shape for tensor in before] == [tensor.shape for tensor in now]:
        # CUDA graphs read a task's tensors where they were.
        torch._foreach_copy_(before, now)
    else:
        trainer.carried = carried
    task = cast("Task", trainer.task)
    if type(task).end_update is not Task.end_update:
        with torch.no_grad():
            task.end_update(whole_batch(trainer.plan.parallel.all_gather(trainer.carried)))


def take_turn(trainer: Trainer, turn: Turn, *, measure: bool) -> Update:
    """Update the optimizers of a turn.

    One whose scaled gradients overflow is tried again with a smaller loss scale. With `skip_non_finite`, one of NaN or
    infinity is left out.

    Raises:
        NonFiniteError: as `make_update`.
    """
    state, optimizers, all_reduce = trainer.state, trainer.optimizers, trainer.plan.parallel.all_reduce
    if turn.name:
        cast("Any", trainer.task).turn = turn.name
    restore = copied_buffers(trainer.task) if optimizers.may_skip else lambda: None
    accumulate, update = partial(accumulate_gradients, trainer, turn), None
    while update is None or update.status == "overflowed":
        update = optimizers.update(turn, state.num_updates, accumulate, all_reduce, measure=measure)
        trainer.enter("other")
        if update.status != "applied":
            skip_update(trainer, restore, has_overflowed=update.status == "overflowed")
    if update.status == "applied":
        meter = trainer.meters[turn.name]
        for outcome in update.outcomes:  # device tensors: no host sync in the hot path
            meter.add(outcome.scalars(is_part=bool(turn.name)), outcome.num_targets)
            if turn.name:
                trainer.losses |= dict.fromkeys(outcome.losses)
    return update


def skip_update(trainer: Trainer, restore: Callable[[], None], *, has_overflowed: bool) -> None:
    """Count an update as skipped, and restore the buffers that were copied before it."""
    state = trainer.state
    restore()  # such as batch norm statistics, which include the samples of this update
    state.num_skipped += 1
    state.num_skipped_in_a_row += 1
    max_skipped = trainer.plan.config["max_skipped"]
    if state.num_skipped_in_a_row > max_skipped:
        raise NonFiniteError.after_skips(state.num_updates, max_skipped, has_overflowed)


def accumulate_gradients(trainer: Trainer, turn: Turn) -> tuple[list[Outcome], int | None]:
    """Accumulate the gradients of a turn of the next update: those of the mean loss over its targets on all ranks.

    Every call gives the same ones. Returns the outcomes of the micro-batches, and the signal that stops all ranks.
    """
    plan, num_updates = trainer.plan, trainer.state.num_updates
    spec, parallel = plan.spec, plan.parallel
    num_parts, outcomes = spec.batch_sizes.value(num_updates) // spec.micro_batch_size, list[Outcome]()
    num_micro_steps = num_parts // spec.world_size
    if num_micro_steps != trainer.num_micro_steps:
        trainer.weigh_losses(num_micro_steps)
    # None: the mean loss of the whole batch needs no weight
    usual = spec.micro_batch_size * plan.targets_per_sample if num_parts > 1 else None
    num_targets: int | Tensor = 0
    whole = WholeBatch(trainer, turn) if plan.gathers_outputs else None
    trainer.enter("data_wait")
    for micro_step, batch in enumerate(trainer.stream.micro_batches(num_updates)):
        is_last = micro_step == num_micro_steps - 1
        batch = trainer.begin_micro_step(batch, micro_step)
        trainer.enter("forward")
        with parallel.gradient_sync(trainer.trained, is_last):  # the ranks reduce once per update
            outcome = whole.part(batch, micro_step) if whole else trainer.forward(trainer.trained, batch)
            trainer.enter("backward")
            add_gradients(trainer, turn, outcome, usual, is_last=is_last)
        outcomes.append(outcome)
        num_targets += outcome.num_targets
        if not is_last:
            trainer.enter("data_wait")
    trainer.enter("optimizer")
    if plan.averages_gradients:
        parallel.average_gradients(turn.all_parameters)
    num_targets, stop = parallel.all_reduce_targets(num_targets, trainer.stop_signal())
    if usual is not None:
        usual_sum = usual * num_parts
        if isinstance(num_targets, Tensor):
            turn.scale_gradients(usual_sum / num_targets.clamp(min=1).to(trainer.loss_weight))
        elif num_targets not in (usual_sum, 0):
            turn.scale_gradients(usual_sum / num_targets)
    return whole.outcomes if whole else outcomes, stop


class WholeBatch:
    """The losses of the outputs of all micro-batches and ranks of an update: those of the whole batch.

    As in Gao et al., "Scaling deep contrastive learning batch size under memory limited setup", 2021 (GradCache), all
    outputs are computed first, and the gradients of the losses by them. Then the loop computes the outputs of one
    micro-batch after the other again, with the same random numbers and buffers, to pass these gradients on.

    Args:
        trainer: the run, before its next update.
        turn: the optimizers whose parameters get gradients.
    """

    def __init__(self, trainer: Trainer, turn: Turn) -> None:
        plan, num_updates, task = trainer.plan, trainer.state.num_updates, cast("Any", trainer.task)
        spec, world = plan.spec, plan.world
        self._forward = partial(trainer.forward, task.outputs)
        self._parameters = [p for p in turn.all_parameters if p.requires_grad]
        self._num_targets = spec.micro_batch_size * plan.targets_per_sample
        parts = list[tuple[Any, Any]]()  # of this rank: outputs and targets
        trainer.enter("forward")
        with kept_buffers(task):
            for micro_step, batch in enumerate(trainer.stream.micro_batches(num_updates)):
                batch = trainer.begin_micro_step(batch, micro_step)
                parts.append((map_tensors(Tensor.detach, self._forward(batch)), batch.targets))
        of_ranks = plan.parallel.all_gather(parts)
        of_ranks[world.rank] = parts
        leaves = [t.requires_grad_() for outputs, _ in parts for t in tensors_of(outputs) if is_inexact(t)]
        self._num_parts, self._num_leaves = len(of_ranks) * len(parts), len(leaves)
        seeding.seed_micro_step(spec.seed, num_updates, self._num_parts, world.device)  # of the losses
        outputs, targets = whole_batch(of_ranks)
        if trainer.carried:
            task.carried = whole_batch(plan.parallel.all_gather(trainer.carried))
        outcome: Outcome = trainer.forward(partial(task.assess, outputs), Batch((), targets))
        inputs, losses = [*leaves, *self._parameters], outcome.losses.items()
        self._gradients = {
            name: plan.precision.gradients(loss, inputs) for name, loss in losses if loss.requires_grad
        }
        outcome = map_tensors(Tensor.detach, outcome)
        carried = split_batch(outcome.carried, spec.micro_batch_size, self._num_parts)
        of_parts = carried[world.rank :: world.world_size]
        self.outcomes = [outcome._replace(carried=part, num_targets=0) for part in of_parts]
        self.outcomes[0] = self.outcomes[0]._replace(num_targets=outcome.num_targets)
        """The losses of the whole batch, the same on every rank; they count once. Each carries what its samples do."""

    def part(self, batch: Batch, micro_step: int) -> Outcome:
        """Return losses of a micro-batch. Averaged over micro-batches and ranks, their gradients are those of all."""
        outputs = [tensor for tensor in tensors_of(self._forward(batch)) if is_inexact(tensor)]
        first, losses = micro_step * len(outputs), dict[str, Any]()
        for name, gradients in self._gradients.items():
            of_outputs, of_parameters = gradients[first:], gradients[self._num_leaves :]
            through_outputs = self._num_parts * _inner_product(outputs, of_outputs)
            losses[name] = through_outputs + _inner_product(self._parameters, of_parameters)
        return Outcome(losses, {}, (), self._num_targets)


def _inner_product(tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Any:
    pairs = zip(tensors, gradients, strict=False)
    return sum((tensor * gradient.conj()).sum().real for tensor, gradient in pairs if gradient is not None)


def add_gradients(
    trainer: Trainer, turn: Turn, outcome: Outcome, usual: int | None, *, is_last: bool
) -> None:
    """Add the gradients of a micro-batch's mean loss, weighted by its number of targets over the usual one, if given.

    The ranks average their gradients. So after all micro-batches, they are the gradients of the sum of the losses of
    all targets of the update, divided by the usual number of its targets.
    """
    loss_weight, num_targets = trainer.loss_weight, outcome.num_targets
    if usual is not None and isinstance(num_targets, Tensor):
        turn.backward(outcome, loss_weight * (num_targets.to(loss_weight) / usual))
    elif isinstance(num_targets, Tensor) or num_targets:
        is_usual = usual is None or num_targets == usual
        turn.backward(outcome, loss_weight if is_usual else loss_weight * (num_targets / usual))
    else:
        turn.backward_zeros(outcome)
    if trainer.plan.compilation.reuses_memory and (turn.name or not is_last):
        turn.clone_gradients()


def report_and_save(trainer: Trainer, due: Due, update: Update, *, is_last: bool) -> None:
    """Log, evaluate, draw and save what is due after an update."""
    state, pace, row = trainer.state, trainer.pace, dict[str, float]()
    call_hooks(trainer, "after_update", state.num_updates, due)
    last = trainer.plan.intervals.due(state.num_updates, is_last=True)
    due = last if has_ended(state) else due
    if due.log:
        row |= log_training(trainer, update)
    if has_ended(state):  # also by `on_log`
        due = last
    if due.histogram:
        reports.log_histograms(trainer)
    if due.eval:
        trainer.enter("evaluation")
        with pace.paused():
            row |= evaluate(trainer)
        trainer.optimizers.schedules.observe(row)
    new_best = trainer.plan.early_stopping.improved(state.best, row, state.num_updates)
    state.best = new_best or state.best
    if last.log and not due.log and ends_early(trainer):  # by this evaluation
        row |= log_training(trainer, update)
    reports.log_row(trainer, row)
    if due.eval:
        with pace.paused():
            reports.follow_evaluation(trainer, row)
    ends = is_last or ends_early(trainer)
    trainer.enter("other")
    is_best = new_best is not None and trainer.plan.num_best > 0
    saves = trainer.plan.intervals.save_every.is_on and (due.save or is_best or ends)
    # A run that continues has a checkpoint, which must not stay the newest at its end.
    if saves or update.stop is not None or (ends and trainer.is_continued):
        trainer.enter("checkpoint")
        reports.check_finite(trainer)
        with pace.paused():
            trainer.save(trainer, is_best)


def log_training(trainer: Trainer, update: Update) -> dict[str, float]:
    """Return the row of training metrics, and pass it to the hooks. Waits for the device."""
    trainer.enter("log")
    row = reports.training_row(trainer, update.grad_norms)
    trainer.plan.hooks.call("on_log", trainer, reports.with_progress(trainer, row))
    return row


def call_hooks(trainer: Trainer, event: str, num_updates: int, due: Due) -> None:
    """Call the hooks that are due at an update. What they call is eager: compiled code has no second derivative."""
    with trainer.plan.compilation.force_eager():
        trainer.plan.hooks.call(event, trainer, num_updates, names=due.hooks)


def evaluate(trainer: Trainer) -> dict[str, float]:
    """Evaluate the task and pass the result to the hooks."""
    row = reports.evaluate_run(trainer)
    trainer.plan.hooks.call("on_evaluation", trainer, reports.with_progress(trainer, row))
    return row


def is_last_update(trainer: Trainer) -> bool:
    """Return whether the next update is known to be the last."""
    state = trainer.state
    return state.num_updates + 1 == trainer.plan.clock.total_updates or state.end_reason is not None


def is_over(trainer: Trainer) -> bool:
    """Return whether no update remains. A run makes at least one update, even if a hook ends it earlier."""
    num_updates = trainer.state.num_updates
    return num_updates >= trainer.plan.clock.total_updates or (num_updates > 0 and ends_early(trainer))


def ends_early(trainer: Trainer) -> bool:
    """Return whether the run ends before its last update. Depends on the state only, so a resumed run agrees."""
    state, early_stopping = trainer.state, trainer.plan.early_stopping
    if state.is_pruned or state.end_reason is not None:  # `has_ended`, without a call in each update
        return True
    return early_stopping.has_stalled(state.best, state.num_updates, state.validated_since)


def has_ended(state: TrainState) -> bool:
    """Return whether a pruner or a hook has ended the run."""
    return state.is_pruned or state.end_reason is not None
