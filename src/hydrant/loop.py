"""The training loop. Ready-made objects only: no config, no setup."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial

from torch import Tensor

from hydrant import seeding
from hydrant.agenda import NOTHING, Due
from hydrant.batch import Outcome
from hydrant.errors import Interrupted, NonFiniteError
from hydrant.evaluation import draw, evaluate
from hydrant.finite import check_finite, not_finite
from hydrant.gallery import Draw, Observe, input_pictures
from hydrant.histograms import histograms
from hydrant.metrics import Pace
from hydrant.optimization import Result, Update
from hydrant.parts import Run
from hydrant.plotting import draw_pixels
from hydrant.profiling import Phase


def train(run: Run) -> None:
    """Advance a run to its horizon, or until it has not improved for so long as `patience` says, or is pruned.

    `state.num_updates` counts completed updates. Whatever is recorded or saved under it describes the
    parameters after that many updates: 0 is the initialisation, `total_updates` the result.

    Raises:
        NonFiniteError: a metric became NaN or infinite; nothing is saved over the last good checkpoint.
        Interrupted: a signal asked to stop; the state is saved.
    """
    state, total = run.state, run.clock.total_updates
    if state.num_updates == 0 and run.agenda.eval_every.every is not None:
        run.journal.log(stamp(run) | evaluate_run(run))  # every curve starts at the untrained model
        show_pictures(run, ends=False)
    run.pace = Pace(state.num_updates)
    while state.num_updates < total and not has_ended(run):
        advance(run, is_last=state.num_updates + 1 == total)


def advance(run: Run, *, is_last: bool) -> None:
    """One update, and what is due after it."""
    due = run.agenda.due(run.state.num_updates + 1, is_last=is_last)
    update = make_update(run, measure=due.log)
    run.compilation.follow(run.state.num_updates)
    run.journal.advance()
    if due is not NOTHING or run.stop is not None:
        do_what_is_due(run, due, update.grad_norms, is_last=is_last)
    run.pace.outside(run.profiler.advance)  # it may write what it has found
    if run.stop is not None and not (is_last or has_ended(run)):
        raise Interrupted(run.stop, run.state.num_updates)


def do_what_is_due(run: Run, due: Due, grad_norms: Mapping[str, Tensor], *, is_last: bool) -> None:
    """Log, evaluate, draw and save after an update."""
    state, row = run.state, dict[str, float]()
    if due.log:
        enter(run, "log")
        row |= read_training(run, grad_norms)  # the one host sync
    if due.histogram:
        show_histograms(run)
    if due.eval:
        enter(run, "evaluation")
        row |= run.pace.outside(lambda: evaluate_run(run))
        run.optimization.schedules.observe(row)
    found = run.goal.improved(state.best, row, state.num_updates)
    is_best, state.best = found is not None, found or state.best
    if row:
        run.journal.log(stamp(run) | row)
    if due.eval:
        state.is_pruned = run.pace.outside(lambda: is_to_end(run, row)) and not is_last
    ends = is_last or has_ended(run)
    if due.eval:
        run.pace.outside(lambda: show_pictures(run, ends=ends))
    enter(run, "other")
    if ((due.save or is_best or ends) and run.agenda.save_every.every is not None) or run.stop is not None:
        enter(run, "checkpoint")
        check_finite(run)
        run.pace.outside(lambda: run.save(run, is_best))


def has_ended(run: Run) -> bool:
    """Whether a run is over before its horizon: a function of the state alone."""
    return run.state.is_pruned or run.goal.has_stalled(run.state.best, run.state.num_updates)


def is_to_end(run: Run, row: Mapping[str, float]) -> bool:
    """Whether the study that a run is a trial of wants no more of it, after the evaluation in this row."""
    every = run.agenda.eval_every.every or 1
    return run.pruning.ends(row, math.ceil(run.state.num_updates / every))


def enter(run: Run, phase: Phase) -> None:
    """What follows is of this phase of the loop, until the next one."""
    for follower in run.followers:
        follower.enter(phase, run.state.num_updates)


def make_update(run: Run, *, measure: bool) -> Update:
    """One update. One that the loss scaler skips is tried again; one of NaN or infinity may be passed over."""
    state, optimization = run.state, run.optimization
    may_skip = optimization.skips_non_finite or run.precision.scales_loss
    kept = [b.clone() for b in run.task.buffers()] if may_skip else []
    while True:
        update = optimization.update(
            state.num_updates, lambda: accumulate_gradients(run), run.parallel.sum, measure=measure
        )
        enter(run, "other")
        if update.result is Result.APPLIED:
            break
        for buffer, value in zip(run.task.buffers(), kept, strict=True):
            buffer.copy_(value)  # a norm's statistics, which have seen the samples
        state.num_skipped += 1
        state.num_skipped_in_a_row += 1
        if state.num_skipped_in_a_row > run.max_skipped:
            raise NonFiniteError.after_skips(
                state.num_updates, run.max_skipped, update.result is Result.OVERFLOWED
            )
        if update.result is Result.NOT_FINITE:
            state.num_updates += 1
            return update
    state.num_updates += 1
    state.num_skipped_in_a_row = 0
    run.averaging.update(state.num_updates)
    for outcome in update.outcomes:  # device tensors: no host sync in the hot path
        run.meter.add(outcome.scalars(), outcome.num_targets)
    return update


def accumulate_gradients(run: Run) -> list[Outcome]:
    """Add the gradients of the micro-batches of the coming update; the same at every call.

    Each counts by its share of the targets of all ranks, so that they are those of the whole update's mean loss.
    """
    num_updates, num_micro_steps = run.state.num_updates, run.spec.num_micro_steps
    outcomes: list[Outcome] = []
    own = 0  # targets of this rank
    enter(run, "data_wait")
    for micro_step, batch in enumerate(run.stream.micro_batches(num_updates)):
        is_last = micro_step == num_micro_steps - 1
        micro_batch_idx = micro_step * run.world.world_size + run.world.rank
        mixed = run.mixing(batch, run.seed, num_updates, micro_batch_idx)
        enter(run, "forward")
        seeding.seed_micro_step(run.seed, num_updates, micro_batch_idx, run.world.device)
        with run.parallel.gradient_sync(run.trained, is_last):
            with run.precision.autocast():
                outcome = run.compilation.train(run.trained, run.precision.cast(mixed))
            outcomes.append(outcome)
            own += outcome.num_targets
            enter(run, "backward")
            ratio = outcome.num_targets / run.spec.micro_batch_size
            if ratio:
                run.optimization.backward(outcome, run.loss_weight if ratio == 1 else run.loss_weight * ratio)
            else:
                run.optimization.backward_of_none(outcome)
        if not is_last and run.compilation.reuses_memory:
            run.optimization.keep_gradients()
        if not is_last:
            enter(run, "data_wait")
    enter(run, "optimizer")
    num_targets, run.stop = run.parallel.agree(own, run.stop_signal())
    if num_targets not in (run.spec.global_batch_size, 0):
        run.optimization.scale_gradients(run.spec.global_batch_size / num_targets)
    return outcomes


def evaluate_run(run: Run) -> dict[str, float]:
    """Evaluate a run's task as it is now, and as `val_ema/...` with the averaged weights if there are any."""

    def evaluated(observe: Observe | None = None) -> dict[str, float]:
        batches = run.watchdog.alive_over(run.val_batches())
        return evaluate(run.task, batches, run.precision, run.parallel, run.compilation.evaluate, observe)

    run.parallel.share_buffers(run.task)
    with run.optimization.showing_result():
        row = evaluated(run.gallery.observer())
    if run.averaging.is_on:
        with run.averaging.in_place_of(run.task):
            run.parallel.share_buffers(run.task)
            row |= {key.replace("val/", "val_ema/", 1): value for key, value in evaluated().items()}
    return row


def show_pictures(run: Run, *, ends: bool) -> None:
    """Give the journal what the task draws, and of the last evaluation what is asked for; `ends`: so does the run."""
    with run.optimization.showing_result():
        pictures = draw(run.task, run.precision)
    drawn: dict[str, Draw] = {name: partial(draw_pixels, picture) for name, picture in pictures.items()}
    drawn |= run.gallery.pictures(run.world, run.parallel.sum, ends=ends)
    for name, picture in drawn.items():
        run.journal.picture(name, picture)


def show_inputs(run: Run) -> None:
    """Give the journal the first samples of the coming update, augmented and mixed, if they are asked for."""
    if run.gallery.is_on:
        batch = next(iter(run.stream.micro_batches(run.state.num_updates)))
        mixed = run.mixing(batch, run.seed, run.state.num_updates, run.world.rank)
        for name, picture in input_pictures(mixed).items():
            run.journal.picture(name, picture)


def show_histograms(run: Run) -> None:
    """Give the journal how the weights are spread after this update, and the gradients by which they moved."""
    enter(run, "log")
    if run.parallel.is_sharded or run.world.is_rank_zero:  # else rank 0 has all of them
        run.journal.histograms(run.state.num_updates, histograms(run.model))


def read_training(run: Run, grad_norms: Mapping[str, Tensor]) -> dict[str, float]:
    """The means since the last log point, the schedules' values and the pace.

    Raises:
        NonFiniteError: a mean or the gradient norm is NaN or infinite.
    """
    last = run.state.num_updates
    measured = {f"optim/{name}": norm for name, norm in grad_norms.items()}
    row = {k if "/" in k else f"train/{k}": v for k, v in run.meter.read(measured).items()}
    for name, value in row.items():
        if not math.isfinite(value):
            raise not_finite(run, name, run.world.gather(run.meter.first_non_finite() is not None))
    values = run.optimization.schedules.values(last - 1)  # what this update ran with
    row |= {f"optim/{name}": value for name, value in values.items()}
    if run.precision.scales_loss:
        row["optim/loss_scale"] = run.precision.scaler.get_scale()
    if run.precision.scales_loss or run.optimization.skips_non_finite:
        row["optim/num_skipped"] = run.state.num_skipped
    updates_per_second = run.pace.read(last)
    row["perf/updates_per_second"] = updates_per_second
    row["perf/samples_per_second"] = updates_per_second * run.spec.global_batch_size
    return row


def stamp(run: Run) -> dict[str, float]:
    """When a row was written."""
    num_updates = run.state.num_updates
    return {"num_updates": num_updates, "epoch": run.clock.epoch(num_updates), "time": time.time()}
