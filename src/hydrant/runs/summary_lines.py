"""The lines that a run prints before it trains, and after it has finished.

What summary.json says of the machine and the software, and the measurements: compilation, speed and memory.
"""

import math
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hydrant.clock import Duration
from hydrant.config.metric_keys import is_averaged
from hydrant.errors import first_few
from hydrant.installation import commit, entry_points, version
from hydrant.optimizers.scheduled_fields import metric_prefix
from hydrant.runs.folder import CURVES_PICTURE, LOG, RunFolder
from hydrant.runs.job import Job
from hydrant.runs.record import last_values, typical_value
from hydrant.terminal.console import format_duration, relative
from hydrant.terminal.text import format_metric, number
from hydrant.training.costs import count_parameters, peak_flops, peak_memory_gib
from hydrant.training.trainer import Plan, TrainState

_PERFORMANCE = ("updates_per_second", "samples_per_second", "mfu")


def describe_environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Return versions, GPU, number of ranks and git commits; None for values that do not exist here.

    `git_commit` and `git_dirty` describe the current folder, which may be the user's project; `hydrant_commit` is the
    commit of Hydrant.
    """
    head = _git("rev-parse", "HEAD")
    array, place = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "world_size": world_size,
        # As squeue shows it; that of a job of an array has `_`.
        "slurm_job": f"{array}_{place}" if array and place else os.environ.get("SLURM_JOB_ID"),
        "hydrant": version(),
        "hydrant_commit": commit(),
        "git_commit": head,
        "git_dirty": None if head is None else bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def figures(plan: Plan, row: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are added to a row: figures of the compilation, and `perf/mfu`."""
    report = plan.compilation.report()
    compiled = {f"compile/{k}": v for k, v in report.summary().items()} if report.graphs else {}
    return compiled | _model_flops_utilization(plan, row)


def measurements(plan: Plan, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of summary.json about this process and the rows of the run."""
    performance = {key: typical_value(rows, f"perf/{key}") for key in _PERFORMANCE}
    performance["peak_memory_gib"] = peak_memory_gib(plan.world.device)
    return {
        "compile": plan.compilation.report().summary(),
        "perf": performance | {"training_seconds": training_seconds(rows)},
        "num_damaged_samples": plan.data.damaged.num_damaged,
        "data_files": dict(plan.data_files),
    }


def training_seconds(rows: Sequence[Mapping[str, Any]], after: int = 0) -> float | None:
    """Return the seconds of all updates after `after` up to the last one that was logged, over all starts of the run.

    The time of evaluations and checkpoints does not count; that of the first updates, which may compile, does. None:
    nothing was logged.
    """
    total, num_updates = 0.0, after
    for row in rows:
        if row["num_updates"] > after and (rate := row.get("perf/updates_per_second")):
            total += (row["num_updates"] - num_updates) / rate
            num_updates = row["num_updates"]
    return total if num_updates > after else None


def _model_flops_utilization(plan: Plan, row: Mapping[str, float]) -> dict[str, float]:
    peak, rate = peak_flops(plan.world.device), row.get("perf/samples_per_second")
    if peak is None or rate is None or not plan.flops_per_sample:
        return {}
    return {"perf/mfu": 3 * plan.flops_per_sample * rate / plan.world.world_size / peak}


_MAX_POINTS = 200  # of a schedule, to find its largest value
_MAX_EVALUATIONS = 20  # that are shown, besides the first and the last


def start_lines(job: Job, plan: Plan) -> dict[str, str]:
    """Return what the run trains, how and where, by the labels of the lines."""
    clock, (total, num_trained) = plan.clock, count_parameters(plan.task)
    trained = "" if total == num_trained else f", {num_trained:,} trained"
    updates = f"{clock.total_updates:,} of {batch_sizes_text(plan)} samples"
    return {
        "data": f"{_choice(job, 'data')}: {_data(plan)}",
        "model": f"{_choice(job, 'model')}: {total:,} parameters{trained}{_resting(plan)}",
        "task": _choice(job, "task"),
        "optimizer": _optimizers(job, plan),
        "schedule": _schedules(job, plan),
        "updates": f"{updates}: {clock.epochs_text(clock.total_updates)}{_hidden_evaluations(plan)}",
        "precision": f"{_choice(job, 'precision')}, compile {_choice(job, 'compile')}",
        "device": _device(plan),
        **_buffers(plan),
        "run folder": relative(job.folder),
    }


def _resting(plan: Plan) -> str:
    names = [name for name, module in plan.task.model.named_modules() if not module.training]
    outermost = [name for name in names if name.rpartition(".")[0] not in names]
    return f"; in evaluation mode: {first_few(outermost)}" if outermost else ""


def _buffers(plan: Plan) -> dict[str, str]:
    """Return what becomes of buffers that training writes, if an update has several micro-batches."""
    spec, effects = plan.spec, list[str]()
    if max(spec.batch_sizes.values) > spec.micro_batch_size * spec.world_size:
        effects.append("each micro-batch gets that of the one before")
    if spec.world_size > 1:
        effects.append("after an update, all ranks get that of rank 0")
    if not (effects and plan.written_buffers):
        return {}
    return {"buffers": f"training writes {first_few(plan.written_buffers)}: {'; '.join(effects)}"}


def batch_sizes_text(plan: Plan) -> str:
    """Return the number of samples per update, and where it changes: `64 (from update 1,000 on 128)`."""
    sizes = plan.spec.batch_sizes
    changes = [f"from update {n:,} on {size:,}" for n, size in zip(sizes.starts, sizes.values, strict=True)]
    return f"{sizes.values[0]:,}" + (f" ({', '.join(changes[1:])})" if changes[1:] else "")


def is_shown(plan: Plan, num_updates: int) -> bool:
    """Return whether the terminal shows the evaluation after these updates; train.log has every one."""
    number = plan.intervals.eval_every.count(num_updates)
    return num_updates in (0, plan.clock.total_updates) or number % _evaluations_per_line(plan) == 0


def _evaluations_per_line(plan: Plan) -> int:
    return max(math.ceil(plan.intervals.eval_every.count(plan.clock.total_updates) / _MAX_EVALUATIONS), 1)


def _hidden_evaluations(plan: Plan) -> str:
    every = _evaluations_per_line(plan)
    return f"; 1 of {every} evaluations is shown here, {LOG} has all" if every > 1 else ""


def end_lines(
    job: Job, seconds: float, summary: Mapping[str, Any], rows: Sequence[dict[str, Any]] = (), start: int = 0
) -> dict[str, str]:
    """Return how long the run took, where it is, and the commands that continue, by the labels of the lines.

    Args:
        seconds: since the command began.
        summary: summary.json.
        rows: of metrics.jsonl.
        start: the update where the command began.
    """
    folder, since = relative(job.folder), [row for row in rows if row["num_updates"] > start]
    rate, trained_since = typical_value(since, "perf/updates_per_second"), training_seconds(since, start)
    speed = "" if rate is None else f", median {number(rate, 3)} updates/s"
    speed += f" since update {start}" if start and rate is not None else ""
    trained = (summary.get("perf") or {}).get("training_seconds")
    asked = Duration.parse(job.config["duration"], "duration")
    if asked.unit == "s" and trained is not None:
        in_all = " in all" if start else ""
        speed += f"; trained for {number(trained)} s{in_all}, asked for {number(float(asked.amount))} s"
    training = "" if trained_since is None else f"{format_duration(trained_since)} training of "
    lines = {"duration": training + format_duration(seconds) + speed, "run folder": folder}
    lines |= {"curves": f"{folder}/{CURVES_PICTURE}"} if (job.folder / CURVES_PICTURE).exists() else {}
    return lines | next_commands(job, summary)


def next_commands(job: Job, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the commands that continue after a finished run, by the labels of the lines."""
    lines = dict[str, str]()
    if job.call or job.sweep_folder:  # Python has methods for them, and a sweep is compared as a whole
        return lines
    folder, parent, best = relative(job.folder), relative(job.folder.parent), summary.get("best") or {}
    is_last = best.get("num_updates") in (None, summary.get("num_updates"))
    weights = "" if is_last and not is_averaged(best.get("metric", "")) else " --weights best"
    if RunFolder(job.folder).newest_checkpoint is not None:
        lines["evaluate"] = f"hydrant evaluate {shlex.quote(folder)}{weights}"
    if job.choices.get("debug") is None and "compare" in entry_points(
        "hydrant.commands"
    ):  # `debug` only tries a config
        lines["compare"] = f"hydrant compare {shlex.quote(parent)}"
    return lines


def result_text(state: TrainState, total_updates: int, rows: list[dict[str, Any]]) -> str:
    """Return the number of updates, the last and the best value of the deciding metric, and why a run ended early."""
    why = "pruned by the study" if state.is_pruned else state.end_reason or "no new best within patience"
    text = f"{state.num_updates} update{'s' * (state.num_updates != 1)}"
    text += f" ({why})" if state.num_updates < total_updates else ""
    if state.best is not None:
        metric, value = state.best["metric"], state.best["value"]
        last = last_values(rows).get(metric, value)
        both = (last, value)
        shown = "not finite" if last is None else format_metric(last, beside=both)  # it is null in the record
        text += f", {metric} {shown}, best {format_metric(value, beside=both)} at update {state.best['num_updates']}"
    return text


def _choice(job: Job, group: str) -> str:
    """Return the chosen option of a group, else the name of what the config or the caller gives instead.

    An option that is a library, such as `model=timm`, is followed by the name of what it builds.
    """
    return _named(job.choices.get(group), job.config[group])


def _named(option: str | None, node: Mapping[str, Any]) -> str:
    title = option or str(node.get("type") or node.get("_target_", "")).rpartition(".")[2]
    built = node.get("path") or node.get("name")
    names_it = not isinstance(built, str) or built.replace("_", "") == title.replace("_", "")
    return title if names_it else f"{title} {built}"


def _data(plan: Plan) -> str:
    data = plan.data
    splits = {"train": plan.train, "val": plan.val, **data.extra_val}
    splits |= {} if data.test is None else {"test": data.test}
    parts = [", ".join(f"{source.num_samples:,} {name}" for name, source in splits.items())]
    parts += [] if data.input_shape is None else ["shape " + "x".join(map(str, data.input_shape))]
    parts += [] if data.num_classes is None else [f"{data.num_classes:,} classes"]
    return "; ".join(parts)


def _optimizers(job: Job, plan: Plan) -> str:
    entries = plan.optimizers.entries
    if list(entries) == ["main"]:
        return f"{_choice(job, 'optimizer')}: {_groups(entries['main'].optimizer.param_groups)}"
    described = {name: entry.optimizer for name, entry in entries.items()}
    return "; ".join(f"{k} {type(o).__name__}: {_groups(o.param_groups)}" for k, o in described.items())


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the learning rate and weight decay of parameter groups, as a range where they differ."""
    fields = {"lr": "lr", "weight_decay": "weight decay"}
    values = {name: [float(g[key]) for g in groups if key in g] for key, name in fields.items()}
    parts = [f"{name} {_range(numbers)}" for name, numbers in values.items() if numbers]
    return ", ".join(parts + ([f"{len(groups)} groups"] if len(groups) > 1 else []))


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _schedules(job: Job, plan: Plan) -> str:
    last = plan.clock.total_updates - 1
    points = sorted({n * last // _MAX_POINTS for n in range(_MAX_POINTS + 1)})
    curves = plan.optimizers.schedules.curves(points)
    return "; ".join(_schedule(job, name, curves) for name in plan.optimizers.entries)


def _schedule(job: Job, optimizer: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Return the schedule of the largest learning rate among an optimizer's groups, and the other scheduled fields."""
    prefix, fields = metric_prefix(optimizer), dict[str, list[Sequence[float]]]()
    for name, curve in curves.items():
        if name.startswith(prefix):
            fields.setdefault(name.removeprefix(prefix).partition("/")[0], []).append(curve)
    text = f"{optimizer} {_scheduler(job, optimizer)}" if prefix else _scheduler(job, optimizer)
    if lrs := fields.pop("lr", []):
        largest, *of_groups = lrs
        ends = dict.fromkeys(f"{value:.3g}" for value in (largest[0], max(largest), largest[-1]))
        text += f": lr {' -> '.join(ends)}"
        text += f", the largest of {len(of_groups)} groups" if any(lr != largest for lr in of_groups) else ""
    return text + (f", also {', '.join(fields)}" if fields else "")


def _scheduler(job: Job, optimizer: str) -> str:
    """Return the option of an optimizer's scheduler, which may be the one of all."""
    node = job.config["optimizers"].get(optimizer, job.config)["scheduler"]
    if node == job.config["scheduler"]:
        return _choice(job, "scheduler")
    return _named(job.choices.get(f"scheduler@optimizers.{optimizer}.scheduler"), node)


def _device(plan: Plan) -> str:
    device, size = plan.world.device, plan.world.world_size
    name = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    return f"{name}, {size} rank{'s' * (size != 1)}"
