"""The lines that a run prints before it trains."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hydrant.errors import first_few
from hydrant.optimizers.scheduled_fields import metric_prefix
from hydrant.runs.folder import LOG
from hydrant.runs.job import Job
from hydrant.runs.reporter import batch_sizes_text, evaluations_per_line
from hydrant.terminal.console import relative
from hydrant.training.costs import count_parameters
from hydrant.training.trainer import Plan

_MAX_POINTS = 200  # of a schedule, to find its largest value


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


def _hidden_evaluations(plan: Plan) -> str:
    every = evaluations_per_line(plan)
    return f"; 1 of {every} evaluations is shown here, {LOG} has all" if every > 1 else ""


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
    splits = {"train": plan.data.train, "val": plan.data.val, **data.extra_val}
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
