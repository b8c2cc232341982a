"""The scheduled fields of param groups, and how their values are written."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hydrant.errors import ConfigError, first_few, location, prefix_error_keys, suggestion, typed_line
from hydrant.optimizers.kernels import arguments_of
from hydrant.schedules import GroupSchedule, Plateau, Schedule

AnySchedule = Schedule | Plateau | GroupSchedule
Schedules = Mapping[str, Mapping[str, AnySchedule]]  # by optimizer and field
_RatioAndBase = tuple[Callable[[int], float], float]
FieldKey = tuple[str, int, str]
"""The name of an optimizer, the position of a param group, and its field: `("main", 0, "lr")`."""


@dataclass(frozen=True)
class ScheduledField:
    """One field of one param group, written before every update: `lr`, or one entry of a tuple, such as `betas.0`.

    Its value in an update is `base * ratio(update)`.
    """

    optimizer: Optimizer
    group_idx: int
    name: str
    ratio: Callable[[int], float]
    base: float = 1.0
    metric: str = ""
    """Its name in the metrics: `lr`; `lr/head` of one of several groups; `critic/lr` of another optimizer."""
    configured_as: str = ""
    """The key for which its schedule is configured: `lr`, `head/lr`."""

    def value(self, update: int) -> float:
        return float(self.base * self.ratio(update))  # a user's function may return a number of numpy

    def write(self, update: int) -> None:
        group = self.optimizer.param_groups[self.group_idx]  # loading a state replaces the dicts
        set_field(group, self.name, self.value(update), keeps_tensor=True)


class FieldSchedules:
    """The schedules of named optimizers, field by field.

    Args:
        optimizers: by name.
        schedules: by optimizer name and field; a field is `lr`, `weight_decay`, `betas.0` ..., or, for the groups of
            one pattern, `head/lr`. A stepped scheduler may write other fields too.

    Raises:
        ConfigError: there is no such field, or it has two schedules.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer], schedules: Schedules) -> None:
        self.fields: dict[FieldKey, ScheduledField] = {}
        self._plateaus: dict[str, Plateau] = {}
        for name, optimizer in optimizers.items():
            by_field = schedules.get(name, {})
            one_group_first = sorted(by_field, key=lambda field: "/" not in field)
            for field in one_group_first:
                self._attach(name, optimizer, field, by_field[field])
                if isinstance(schedule := by_field[field], Plateau):
                    self._plateaus[f"{name}.{field}"] = schedule

    def _attach(self, name: str, optimizer: Optimizer, configured_as: str, schedule: AnySchedule) -> None:
        """Add the fields that a schedule writes."""
        schedule_key, groups = config_key(name, configured_as), optimizer.param_groups
        pattern, _, wanted = configured_as.rpartition("/")
        chosen = [n for n, group in enumerate(groups) if pattern in ("", group.get("pattern"))]
        numbers = [numbers_of(group) for group in groups]
        written: Sequence[Mapping[str, _RatioAndBase]]  # by field
        if isinstance(schedule, GroupSchedule):
            with prefix_error_keys(f"{schedule_key}."):
                values = schedule.fields(optimizer)
            written = [{field: (value, 1.0) for field, value in of_group.items()} for of_group in values]
        else:
            written = [{wanted: (schedule, n[wanted])} if wanted in n else {} for n in numbers]
        if not any(wanted in written[n] for n in chosen):
            if isinstance(schedule, GroupSchedule):
                kind, known = "this scheduler", set(itertools.chain.from_iterable(written))
            else:
                kind, arguments = type(optimizer).__name__, arguments_of(optimizer)
                known = {f for n in chosen for f in numbers[n] if f.partition(".")[0] in arguments}
            remedy = suggestion(wanted, known, "It has")
            raise ConfigError(schedule_key, f"{kind} has no number {wanted!r} to schedule", remedy=remedy)
        for n in chosen:
            for field, (ratio, base) in written[n].items():
                key, separate = (name, n, field), f"{groups[n].get('pattern')}/{configured_as}"
                if key not in self.fields:
                    metric = _metric_name(name, groups, n, field)
                    self.fields[key] = ScheduledField(optimizer, n, field, ratio, base, metric, configured_as)
                elif self.fields[key].configured_as != separate:  # the group's own schedule of this field
                    raise ConfigError(schedule_key, f"{field} has a schedule already", remedy="remove one")

    def check(self, total_updates: int) -> None:
        """Compute every schedule at up to about 2,000 updates of the run.

        Raises:
            ConfigError: a value is not a finite number or cannot be computed, or makes an lr negative.
        """
        for (optimizer, _, _), field in self.fields.items():
            schedule_key = config_key(optimizer, field.configured_as)
            for update in range(0, total_updates, max(total_updates // 2000, 1)):
                try:
                    value = field.value(update)
                except Exception as error:  # a user's schedule may raise anything
                    message = f"raises {typed_line(error)} for update {update} (at {location(error)})"
                    raise ConfigError(schedule_key, message) from error
                if not math.isfinite(value) or (field.name == "lr" and value < 0 <= field.base):
                    needed = "a finite number" + (" of at least 0" if field.name == "lr" else "")
                    message = f"returns {value!r} for update {update}, but {needed} is needed"
                    raise ConfigError(schedule_key, message, needs=needed)

    def of(self, optimizer: str) -> list[str]:
        """Return the scheduled fields of a named optimizer, of any of its groups."""
        return list(dict.fromkeys(field for name, _, field in self.fields if name == optimizer))

    def write(self, num_updates: int) -> None:
        """Write every field for the update after `num_updates` completed ones."""
        for field in self.fields.values():
            field.write(num_updates)

    def values(self, update: int) -> dict[str, float]:
        """Return the value of every field in an update, by its name in the metrics; `lr` as in `curves`."""
        return {name: value for name, (value,) in self._named(self.fields, [update]).items()}

    def curves(self, updates: Sequence[int]) -> dict[str, list[float]]:
        """Return the values in these updates by metric name, without the fields that depend on metrics.

        Of an optimizer with several groups, `lr` is the largest of those whose weights are trained.
        """
        pure = [key for key, field in self.fields.items() if not isinstance(field.ratio, Plateau)]
        return self._named(pure, updates)

    def panels(self, updates: Sequence[int]) -> dict[str, dict[str, tuple[Sequence[int], Sequence[float]]]]:
        """Return `updates` and the values in them by field, such as `lr` or `critic/lr`, and by parameter group.

        Groups with the same values have one curve, named for them; the name is "" if these are all groups.
        """
        groups_of = dict[str, dict[tuple[float, ...], list[str]]]()
        for (optimizer, group_idx, name), field in self.fields.items():
            group = field.optimizer.param_groups[group_idx]
            by_curve = groups_of.setdefault(f"{metric_prefix(optimizer)}{name}", {})
            names = by_curve.setdefault(tuple(map(field.value, updates)), [])
            names.append(str(group.get("name", group_idx)))
        return {
            name: {
                first_few(n, noun=" groups") if len(curves) > 1 else "": (updates, c)
                for c, n in curves.items()
            }
            for name, curves in groups_of.items()
        }

    def _named(self, keys: Iterable[FieldKey], updates: Sequence[int]) -> dict[str, list[float]]:
        values, rates = dict[str, list[float]](), dict[str, list[list[float]]]()
        for key in keys:
            field, shared = self.fields[key], f"{metric_prefix(key[0])}lr"
            values[field.metric] = [field.value(n) for n in updates]
            group = field.optimizer.param_groups[field.group_idx]
            is_one_of_several = field.name == "lr" and field.metric != shared
            if is_one_of_several and any(p.requires_grad for p in group["params"]):
                rates.setdefault(shared, []).append(values[field.metric])
        return {
            name: list(map(max, zip(*of_groups, strict=True))) for name, of_groups in rates.items()
        } | values

    def observe(self, row: Mapping[str, float]) -> None:
        """Pass the metrics of an evaluation to the schedules that depend on them."""
        for plateau in self._plateaus.values():
            plateau.observe(row)

    def state_dict(self) -> dict[str, Any]:
        return {name: plateau.state_dict() for name, plateau in self._plateaus.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, plateau in self._plateaus.items():
            plateau.load_state_dict(state[name])


def get_field(group: Mapping[str, Any], field: str) -> Any:
    """Return a field of a param group, such as `lr` or `betas.0`."""
    name, _, position = field.partition(".")
    return group[name][int(position)] if position else group[name]


def set_field(group: dict[str, Any], field: str, value: Any, *, keeps_tensor: bool = False) -> None:
    """Set a field of a param group, such as `lr` or `betas.0`.

    With `keeps_tensor`, a number is written into the tensor that the field is, because a compiled update keeps it.
    """
    name, _, position = field.partition(".")
    items: Any = list(group[name]) if position else group
    key = int(position) if position else name
    if keeps_tensor and isinstance(items[key], Tensor):
        items[key].fill_(value)
    else:
        items[key] = value
    if position:
        group[name] = tuple(items)


def config_prefix(optimizer: str) -> str:
    """Return the beginning of the config keys of a named optimizer; empty for `main`, the only one."""
    return "" if optimizer == "main" else f"optimizers.{optimizer}."


def config_key(optimizer: str, field: str) -> str:
    """Return the config key of a field's schedule."""
    group, _, name = field.rpartition("/")
    prefix = config_prefix(optimizer)
    if group:
        return f"{prefix}param_groups.patterns.{group}.schedules.{name}"
    return f"{prefix}scheduler" if field == "lr" else f"{prefix}schedules.{field}"


def metric_prefix(optimizer: str) -> str:
    """Return the beginning of the metric names of a named optimizer; empty for `main`, the only one."""
    return "" if optimizer == "main" else f"{optimizer}/"


def _metric_name(optimizer: str, groups: Sequence[Mapping[str, Any]], group_idx: int, field: str) -> str:
    titles = [group.get("name") for group in groups]
    title = titles[group_idx]
    suffix = str(group_idx) if title is None or titles.count(title) > 1 else title
    is_plain = group_idx == 0 and (field != "lr" or len(groups) == 1)
    return metric_prefix(optimizer) + field + ("" if is_plain else f"/{suffix}")


def as_number(value: Any) -> float | None:
    """Return a number of Python, numpy or torch as a float; None for anything else."""
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def items_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a param group by name; items of a tuple or list are named `betas.0`."""
    items = dict[str, Any]()
    for name, value in group.items():
        is_series = isinstance(value, (tuple, list)) and name != "params"
        items |= {f"{name}.{n}": item for n, item in enumerate(value)} if is_series else {name: value}
    return items


def numbers_of(group: Mapping[str, Any]) -> dict[str, float]:
    """Return every number of a param group by name."""
    items = items_of(group).items()
    return {key: number for key, item in items if (number := as_number(item)) is not None}
