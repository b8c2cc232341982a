"""The scheduled fields of param groups. Only this module writes their values."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hydrant.checks import suggestion
from hydrant.errors import ConfigError, location, quoted, typed_line
from hydrant.optimizers.kernels import arguments_of
from hydrant.schedules import Plateau, Schedule, SteppedScheduler

AnySchedule = Schedule | Plateau | SteppedScheduler
Schedules = Mapping[str, Mapping[str, AnySchedule]]  # by optimizer and field


@dataclass(frozen=True)
class ScheduledField:
    """One field of one param group, written before every update: `lr`, or one entry of a tuple, such as `betas.0`.

    Its value in an update is `base * ratio(update)`.
    """

    optimizer: Optimizer
    group_idx: int
    name: str
    position: int | None
    ratio: Callable[[int], float]
    base: float = 1.0

    @classmethod
    def of(cls, optimizer: Optimizer, group_idx: int, field: str, schedule: AnySchedule) -> ScheduledField:
        """Return the field, such as `lr` or `betas.0`, with the values that a schedule gives it."""
        name, _, position = field.partition(".")
        place = int(position) if position else None
        if isinstance(schedule, SteppedScheduler):  # it gives the values themselves
            replay = schedule.replay(optimizer)
            return cls(
                optimizer, group_idx, name, place, lambda update: replay.value(update, group_idx, field)
            )
        base = _number(optimizer.param_groups[group_idx], field)
        assert base is not None
        return cls(optimizer, group_idx, name, place, schedule, base)

    def value(self, update: int) -> float:
        return float(self.base * self.ratio(update))  # a user's function may return a number of numpy

    def write(self, update: int) -> None:
        group = self.optimizer.param_groups[self.group_idx]  # loading a state replaces the dicts
        value, current = self.value(update), group[self.name]
        target = current if self.position is None else current[self.position]
        if isinstance(target, Tensor):  # in place, because a compiled update keeps the tensor
            target.fill_(value)
        elif self.position is None:
            group[self.name] = value
        else:
            group[self.name] = (*current[: self.position], value, *current[self.position + 1 :])


class FieldSchedules:
    """The schedules of named optimizers, field by field.

    Args:
        optimizers: by name.
        schedules: by optimizer name and field; a field is `lr`, `weight_decay`, `betas.0` ..., or, for one group,
            `head/lr`. A stepped scheduler may write other fields too.

    Raises:
        ConfigError: there is no such field or group, or it has two schedules.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer], schedules: Schedules) -> None:
        self.fields: dict[str, ScheduledField] = {}
        """The scheduled fields by `optimizer.group.field`, with the group's position: `main.0.lr`."""
        self.metric_names: dict[str, str] = {}
        """The metric name of each field: `lr`; `lr/head` of one of several groups; `critic/lr` of another optimizer."""
        self._configured_as: dict[str, str] = {}
        """The key for which the schedule of each field is configured: `lr`, `head/lr`."""
        self._pure: list[str] = []
        """The fields that do not depend on metrics."""
        self._plateaus: dict[str, Plateau] = {}
        for name, optimizer in optimizers.items():
            by_field = schedules.get(name, {})
            one_group_first = sorted(by_field, key=lambda field: "/" not in field)
            for field in one_group_first:
                self._attach(name, optimizer, field, by_field[field])
                if isinstance(schedule := by_field[field], Plateau):
                    self._plateaus[f"{name}.{field}"] = schedule

    def _attach(self, name: str, optimizer: Optimizer, field: str, schedule: AnySchedule) -> None:
        """Add the fields that a schedule writes. It is configured for `field`."""
        schedule_key = config_key(name, field)
        group_name, _, field_name = field.rpartition("/")
        groups = [group.get("name") for group in optimizer.param_groups]
        patterns = [group.get("pattern") for group in optimizer.param_groups]
        chosen = [n for n, title in enumerate(groups) if group_name in ("", title, patterns[n])]
        if not chosen:
            known = ", ".join(map(quoted, groups))
            raise ConfigError(schedule_key, f"there is no group {group_name}", remedy=f"there are {known}")
        if isinstance(schedule, SteppedScheduler):
            written = schedule.replay(optimizer).fields
            if not any(field_name in written[n] for n in chosen):
                known = ", ".join(dict.fromkeys(itertools.chain.from_iterable(written)))
                raise ConfigError(schedule_key, f"this scheduler sets {known}, not {field_name}")
        else:
            has_number = [_number(group, field_name) is not None for group in optimizer.param_groups]
            written = [[field_name] * has for has in has_number]
            if not any(written[n] for n in chosen):
                raise _no_number(optimizer, chosen, field_name, schedule_key)
        targets = [(n, written_field) for n in chosen for written_field in written[n]]
        for n, written_field in targets:
            key = f"{name}.{n}.{written_field}"
            if self._configured_as.get(key) in (f"{groups[n]}/{field}", f"{patterns[n]}/{field}"):
                continue  # the group has a separate schedule for this field
            if key in self.fields:
                reason = f"{written_field} has a schedule already"
                raise ConfigError(schedule_key, reason, remedy="remove one")
            self.fields[key] = ScheduledField.of(optimizer, n, written_field, schedule)
            self.metric_names[key] = _metric_name(name, groups, n, written_field)
            self._configured_as[key] = field
            if not isinstance(schedule, Plateau):
                self._pure.append(key)

    def check(self, total_updates: int) -> None:
        """Compute every schedule at up to about 2,000 updates of the run.

        Raises:
            ConfigError: a value is not a finite number or cannot be computed, or a learning rate is negative.
        """
        for key, field in self.fields.items():
            optimizer, _, name = key.split(".", 2)
            schedule_key = config_key(optimizer, self._configured_as[key])
            for update in range(0, total_updates, max(total_updates // 2000, 1)):
                try:
                    value: Any = field.value(update)
                except Exception as error:  # a user's schedule may raise anything
                    message = f"raises {typed_line(error)} for update {update} (at {location(error)})"
                    raise ConfigError(schedule_key, message) from error
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if not is_number or not math.isfinite(value) or (name == "lr" and value < 0):
                    needed = "a finite number" + (" of at least 0" if name == "lr" else "")
                    message = f"returns {value!r} for update {update}, but {needed} is needed"
                    raise ConfigError(schedule_key, message, needs=needed)

    def of(self, optimizer: str) -> list[str]:
        """Return the scheduled fields of a named optimizer, of any of its groups."""
        fields = [key.split(".", 2)[2] for key in self.fields if key.startswith(f"{optimizer}.")]
        return list(dict.fromkeys(fields))

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
        return self._named(self._pure, updates)

    def _named(self, keys: Iterable[str], updates: Sequence[int]) -> dict[str, list[float]]:
        values, rates = dict[str, list[float]](), dict[str, list[list[float]]]()
        for key in keys:
            (optimizer, _, field_name), field = key.split(".", 2), self.fields[key]
            shared, name = f"{metric_prefix(optimizer)}lr", self.metric_names[key]
            values[name] = [field.value(n) for n in updates]
            group = field.optimizer.param_groups[field.group_idx]
            if field_name == "lr" and name != shared and any(p.requires_grad for p in group["params"]):
                rates.setdefault(shared, []).append(values[name])
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


def set_field(group: dict[str, Any], field: str, value: Any) -> None:
    """Set a field of a param group, such as `lr` or `betas.0`."""
    name, _, position = field.partition(".")
    if position:
        items = list(group[name])
        items[int(position)] = value
        value = tuple(items)
    group[name] = value


def _number(group: Mapping[str, Any], field: str) -> float | None:
    """Return the value of a field, or of an entry of a tuple; None if it does not exist or is not a number."""
    name, _, position = field.partition(".")
    value = group.get(name)
    if position:
        items = value if isinstance(value, (tuple, list)) else ()
        value = items[int(position)] if position.isdigit() and int(position) < len(items) else None
    return None if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)) else float(value)


def _no_number(optimizer: Optimizer, groups: list[int], field: str, key: str) -> ConfigError:
    names = dict.fromkeys(itertools.chain.from_iterable(optimizer.param_groups[n] for n in groups))
    names = [name for name in names if name in arguments_of(optimizer) - {"params"}]
    fields = [field for name in names for field in (name, f"{name}.0", f"{name}.1")]
    numbers = [f for f in fields if any(_number(optimizer.param_groups[n], f) is not None for n in groups)]
    options = suggestion(field, numbers, "It has").replace("It has:", "It has")
    return ConfigError(key, f"{type(optimizer).__name__} has no number {field!r} to schedule", remedy=options)


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


def _metric_name(optimizer: str, groups: list[str | None], group_idx: int, field: str) -> str:
    title = groups[group_idx]
    suffix = str(group_idx) if title is None or Counter(groups)[title] > 1 else title
    is_plain = group_idx == 0 and (field != "lr" or len(groups) == 1)
    return metric_prefix(optimizer) + field + ("" if is_plain else f"/{suffix}")
