"""`preview`: show what a config would do, without training."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.config.check import check
from hydrant.config.command_line import Flags, writing_to
from hydrant.config.compose import combinations, compose
from hydrant.installation import tell_listeners
from hydrant.records import Answer
from hydrant.terminal.console import answer, say, wants_json
from hydrant.terminal.text import number, sparkline

if TYPE_CHECKING:
    from hydrant.training.trainer import Plan


_MAX_POINTS = 100_000
"""The most points of a schedule in the picture and in the terminal."""
_GIB = 2**30


class ParameterGroup(Answer):
    """A group of parameters.

    Attributes:
        group: `<optimizer>.<number>`
        values: The numbers of the group.
    """

    group: str
    name: str
    num_parameters: int
    values: Mapping[str, float | None]


class Cost(Answer):
    """What a run and the sweep that it is the first of cost on this machine."""

    seconds_per_update: float
    cpu_seconds: float
    times_faster_in_fp32: float | None
    cpu_seconds_of_sweep: float


class Preview(Answer):
    """What a config would do.

    Attributes:
        is_assumed: `duration` is in seconds, so the number of updates is a guess.
        global_batch_sizes: Samples per update, by the update from which on they count.
        micro_batch_size: Samples per forward pass on one rank.
        world_size: Ranks.
        num_samples: Samples of each split.
        flops_per_sample: To evaluate a sample; training takes about 3 times that.
        gradients_gib: The state of the optimizer and the activations come on top.
        time: Seconds of an update here, and processor seconds of the updates of the run and of all jobs. For bfloat16
            on a CPU without it, how many times faster fp32 is.
        groups: The parameter groups.
        updates: At most 21 updates, or `--points`, at equal distances; schedule.json of a run has 200.
        schedules: The value of each schedule but plateau, in `updates`, by metric name.
    """

    total_updates: int
    is_assumed: bool
    global_batch_sizes: Mapping[str, int]
    micro_batch_size: Any
    world_size: int
    num_samples: Mapping[str, int]
    num_parameters: int
    num_trained_parameters: int
    flops_per_sample: Any
    weights_gib: float
    gradients_gib: float
    warnings: Sequence[str]
    time: Cost
    groups: Sequence[ParameterGroup]
    updates: Sequence[int]
    schedules: Mapping[str, Sequence[float | None]]


def main(arguments: Sequence[str]) -> int:
    """Prepare a run on the host, print its plan, draw its schedules if asked, and return the exit status."""
    parser = Flags("preview", png=Path)
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--points", type=points, default=21)
    options, overrides = parser.split(arguments)
    jobs = combinations(overrides)
    config = check(compose(overrides if len(jobs) == 1 else jobs[0]))
    from hydrant.training.prepare.build import prepare  # imports torch

    plan = prepare(config, is_preview=True)
    last = plan.clock.total_updates - 1
    updates = [*range(0, last, max((last + 1) // _MAX_POINTS, 1)), last]
    curves = plan.optimizers.schedules.panels(updates)
    if options.png is not None:
        with writing_to("--png", options.png, ".png"):
            options.png.unlink(missing_ok=True)  # of another plan
            tell_listeners("on_preview", plan, curves, options.png)
            options.png.stat()  # an error, if nothing draws
    if wants_json():
        answer(_plain(plan, _time(plan, jobs), options.points))
        return 0
    if options.png is not None:
        say(f"picture      {options.png}")
    _print_plan(plan)
    for field, groups in curves.items():
        _print_schedule(field, {name: values for name, (_, values) in groups.items()})
    _print_time(_time(plan, jobs), len(jobs))
    return 0


def points(text: str) -> float:
    """Return the number of points of a schedule in JSON, at most: infinity for `all` updates."""
    return math.inf if text == "all" else int(text)


def _time(plan: Plan, jobs: Sequence[Sequence[str]]) -> Cost:
    """Make two updates of each kind of job on this machine, and return what the second one and all of a run cost.

    With bfloat16 on a CPU without its instructions, two updates of precision=fp32 are timed too.
    """
    from hydrant.optimizers.kernels import has_bfloat16
    from hydrant.sweeps.preflight import without_repetitions
    from hydrant.training.costs import synchronize
    from hydrant.training.loop import make_update
    from hydrant.training.prepare.build import prepare
    from hydrant.training.prepare.micro_batch import scratch_trainer

    def second_of_two(plan: Plan) -> tuple[float, float]:
        seconds = cpu_seconds = 0.0
        with scratch_trainer(plan) as trainer:
            for _ in range(2):
                began, began_cpu = time.perf_counter(), time.process_time()
                make_update(trainer, measure=False)
                synchronize(plan.world.device)
                seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
        return seconds, cpu_seconds * plan.clock.total_updates * plan.spec.world_size

    seconds, cpu_seconds = second_of_two(plan)
    known = {without_repetitions(plan.config): cpu_seconds}
    total = 0.0
    for words in jobs:
        config = plan.config if len(jobs) == 1 else check(compose(words))
        kind = without_repetitions(config)
        if kind not in known:
            known[kind] = second_of_two(prepare(config, is_preview=True))[1]
        total += known[kind]
    ratio: float | None = None
    if plan.precision.uses_bf16 and not has_bfloat16(plan.world.device):
        in_fp32 = prepare(check(compose([*jobs[0], "precision=fp32"])), is_preview=True)
        ratio = seconds / second_of_two(in_fp32)[0]
    return Cost(seconds, cpu_seconds, ratio, total)


def _plain(plan: Plan, cost: Cost, max_points: float) -> dict[str, Any]:
    """Return the plan in plain types, with so many points of each schedule at most."""
    from hydrant.training.costs import count_parameters

    clock, spec, parameters = plan.clock, plan.spec, list(plan.task.parameters())
    last, (total, trained) = clock.total_updates - 1, count_parameters(plan.task)
    num_points = int(min(max_points, clock.total_updates))
    updates = [n * last // max(num_points - 1, 1) for n in range(num_points)]
    sizes = spec.batch_sizes
    return {
        "total_updates": clock.total_updates,
        "is_assumed": bool(clock.unmeasured_sizes),
        "global_batch_sizes": {str(n): size for n, size in zip(sizes.starts, sizes.values, strict=True)},
        "micro_batch_size": spec.micro_batch_size,
        "world_size": spec.world_size,
        "num_samples": {name: split.source.num_samples for name, split in plan.splits.items()},
        "num_parameters": total,
        "num_trained_parameters": trained,
        "flops_per_sample": plan.flops.per_sample,
        "weights_gib": sum(p.numel() * p.element_size() for p in parameters) / _GIB,
        "gradients_gib": sum(p.numel() * p.element_size() for p in parameters if p.requires_grad) / _GIB,
        "warnings": [plan.flops.uncounted] if plan.flops.uncounted else [],
        "time": cost,
        "groups": _groups(plan),
        "updates": updates,
        "schedules": plan.optimizers.schedules.curves(updates),
    }


def _print_plan(plan: Plan) -> None:
    from hydrant.runs.reporter import batch_sizes_text
    from hydrant.training.costs import count_parameters

    clock, spec = plan.clock, plan.spec
    epochs = clock.epochs_text(clock.total_updates)
    total, trained = count_parameters(plan.task)
    limit = " at most: auto finds what fits" if plan.config["micro_batch_size"] == "auto" else ""
    micro_steps = " to ".join(str(spec.num_micro_steps(start)) for start in spec.batch_sizes.starts)
    micro_batches = f"{spec.micro_batch_size} samples x {micro_steps} x {spec.world_size} rank(s)"
    if clock.unmeasured_sizes:
        say("horizon      not known: the run first measures how long an update takes; assumed here:")
    say(f"updates      {clock.total_updates:,} of {batch_sizes_text(plan)} samples: {epochs}")
    purposes = {"train": "to train on", "val": "to evaluate on", "test": "to test on"}
    samples = {purposes.get(name, f"in {name}"): s.source.num_samples for name, s in plan.splits.items()}
    say(f"samples      {', '.join(f'{count:,} {purpose}' for purpose, count in samples.items())}")
    say(f"micro-batch  {micro_batches}{limit}")
    say(f"model        {total:,} parameters, {trained:,} trained")
    say(f"cost         {plan.flops.per_sample:,} FLOPs per sample to evaluate, about 3 times that to train")
    if plan.flops.uncounted:
        say(f"             {plan.flops.uncounted}")
    for group in _groups(plan):
        values = ", ".join(f"{name} {value:g}" for name, value in group.values.items())
        say(f"group        {group.group} ({group.name}): {group.num_parameters:,} parameters; {values}")


def _print_time(cost: Cost, num_jobs: int) -> None:
    seconds, sweep = number(cost.seconds_per_update), number(cost.cpu_seconds_of_sweep)
    say(f"time         {seconds} s an update here, by the second of two")
    say(f"             {number(cost.cpu_seconds)} s of processor time for a run's updates")
    if num_jobs > 1:
        say(f"             {sweep} s of processor time for all {num_jobs} runs; the rest shows the first")
    if (ratio := cost.times_faster_in_fp32) is not None:
        say(f"             this CPU has no bfloat16: fp32 is {number(ratio)} times as fast")


def _print_schedule(field: str, groups: Mapping[str, Sequence[float]]) -> None:
    """Print each shape of the curves of a field, with the groups that have it: from the smallest to the largest.

    A curve is described by its first, its largest and its last value.
    """
    shapes = dict[str, list[str]]()
    for group, values in groups.items():
        shapes.setdefault(sparkline(values), []).append(group)
    for shape, names in shapes.items():
        names = sorted(names, key=lambda name: max(groups[name]))
        lines = list[str]()
        for name in dict.fromkeys((names[0], names[-1])):
            of_group, values = f" of {name}" if name else "", groups[name]
            lines.append(
                f"{field}{of_group}: {number(values[0])} -> {number(max(values))} -> {number(values[-1])}"
            )
        lines[1:1] = [f"and {len(names) - 2} between"] if len(names) > 2 else []
        for n, line in enumerate([*lines, shape]):
            say(f"{'' if n else 'schedule':<12} {line}")


def _groups(plan: Plan) -> list[ParameterGroup]:
    """Return the param groups, each with its numbers that are arguments of its optimizer."""
    from hydrant.optimizers.kernels import arguments_of

    groups = list[ParameterGroup]()
    for name, entry in plan.optimizers.entries.items():
        arguments = arguments_of(entry.optimizer)
        for group_idx, group in enumerate(entry.optimizer.param_groups):
            count = sum(p.numel() for p in group["params"])
            numbers = {k: group[k] for k in group if k in arguments and type(group[k]) in (int, float)}
            groups.append(ParameterGroup(f"{name}.{group_idx}", group.get("name", "-"), count, numbers))
    return groups
