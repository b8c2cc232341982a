"""Which fields of which param groups are scheduled, and the one place that writes them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from hydrant.errors import ConfigError, location, suggestion, typed_line
from hydrant.schedules import Plateau, Replay, Schedule, Stepped

AnySchedule = Schedule | Plateau | Stepped
Ratio = Callable[[int], float]


@dataclass(frozen=True)
class ScheduledField:
    """One field of one param group, written before every update: `lr`, or one of a tuple as `betas.0`."""

    optimizer: Optimizer
    group_idx: int
    name: str
    position: int | None
    value: Callable[[int], float]  # what it is in an update

    @classmethod
    def scaled(cls, optimizer: Optimizer, group_idx: int, field: str, ratio: Ratio) -> ScheduledField:
        """The field's own value times `ratio`."""
        name, _, position = field.partition(".")
        base = _number(optimizer.param_groups[group_idx], field)
        assert base is not None
        place = int(position) if position else None
        return cls(optimizer, group_idx, name, place, lambda update: base * ratio(update))

    @classmethod
    def replayed(cls, optimizer: Optimizer, group_idx: int, field: str, replay: Replay) -> ScheduledField:
        """The field as a stepped scheduler writes it."""
        name, _, position = field.partition(".")
        place = int(position) if position else None
        return cls(optimizer, group_idx, name, place, lambda update: replay.value(update, group_idx, field))

    def write(self, update: int) -> None:
        group = self.optimizer.param_groups[self.group_idx]  # looked up: loading a state replaces the dicts
        value, current = self.value(update), group[self.name]
        target = current if self.position is None else current[self.position]
        if isinstance(target, Tensor):  # in place: a compiled update holds on to the tensor
            target.fill_(value)
        elif self.position is None:
            group[self.name] = value
        else:
            group[self.name] = (*current[: self.position], value, *current[self.position + 1 :])


class FieldSchedules:
    """The schedules of named optimizers, field by field.

    Args:
        schedules: by optimizer name and field; a field is `lr`, `weight_decay`, `betas.0` ..., or that of a group
            alone, `head/lr`. A stepped scheduler may write other fields besides.

    Raises:
        ConfigError: there is no such field or group, or it has a schedule already.
    """

    def __init__(
        self, optimizers: Mapping[str, Optimizer], schedules: Mapping[str, Mapping[str, AnySchedule]]
    ) -> None:
        self.fields: dict[str, ScheduledField] = {}
        """By `optimizer.group.field`, the group by its position: `main.0.lr`."""
        self.metric_names: dict[str, str] = {}
        """What each is called in the metrics: `lr`, for later groups `lr/head`, of other optimizers `critic/lr`."""
        self._plateaus: dict[str, Plateau] = {}
        claimed: dict[str, str] = {}
        for name, optimizer in optimizers.items():
            own = schedules.get(name, {})
            for field in sorted(own, key=lambda field: "/" not in field):  # those of one group come first
                self._attach(name, optimizer, field, own[field], claimed)
                if isinstance(schedule := own[field], Plateau):
                    self._plateaus[f"{name}.{field}"] = schedule
        owners = {key: schedules[key.partition(".")[0]][field] for key, field in claimed.items()}
        self._pure = [key for key in self.fields if not isinstance(owners[key], Plateau)]

    def _attach(
        self, name: str, optimizer: Optimizer, field: str, schedule: AnySchedule, claimed: dict[str, str]
    ) -> None:
        group_name, _, field_name = field.rpartition("/")
        groups = [group.get("name") for group in optimizer.param_groups]
        patterns = [group.get("pattern") for group in optimizer.param_groups]
        chosen = [n for n, title in enumerate(groups) if group_name in ("", title, patterns[n])]
        if not chosen:
            known = ", ".join(map(str, groups))
            raise ConfigError(config_key(name, field), f"there is no group {group_name}; there are {known}")
        if isinstance(schedule, Stepped):
            replay = schedule.replay(optimizer)
            written = replay.fields
        else:
            replay = None
            written = [
                [field_name] if _number(g, field_name) is not None else [] for g in optimizer.param_groups
            ]
            if not any(written[n] for n in chosen):
                raise _no_number(optimizer, chosen, field_name, config_key(name, field))
        if not any(field_name in written[n] for n in chosen):
            known = ", ".join(dict.fromkeys(itertools.chain.from_iterable(written)))
            raise ConfigError(config_key(name, field), f"this scheduler writes {known}; not {field_name}")
        for group_idx in chosen:
            for written_field in written[group_idx]:
                key = f"{name}.{group_idx}.{written_field}"
                if claimed.get(key) in (f"{groups[group_idx]}/{field}", f"{patterns[group_idx]}/{field}"):
                    continue  # the group's own goes before
                if key in claimed:
                    raise ConfigError(
                        config_key(name, field), f"{written_field} has a schedule already; remove one"
                    )
                claimed[key] = field
                if replay is None:
                    self.fields[key] = ScheduledField.scaled(
                        optimizer, group_idx, field_name, cast("Ratio", schedule)
                    )
                else:
                    self.fields[key] = ScheduledField.replayed(optimizer, group_idx, written_field, replay)
                self.metric_names[key] = _metric_name(name, groups, group_idx, written_field)

    def check(self, total_updates: int) -> None:
        """Look at every schedule over the run, at 2,000 updates at most.

        Raises:
            ConfigError: a value is no finite number, or cannot be computed; a learning rate is negative.
        """
        for key, field in self.fields.items():
            optimizer, _, name = key.split(".", 2)
            for update in range(0, total_updates, max(total_updates // 2000, 1)):
                try:
                    value: Any = field.value(update)
                except Exception as error:  # a user's schedule raises anything
                    told = f"raises {typed_line(error)} for update {update} (at {location(error)})"
                    raise ConfigError(config_key(optimizer, name), told) from error
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if not is_number or not math.isfinite(value) or (name == "lr" and value < 0):
                    needed = "needed is a finite number" + (" from 0 on" if name == "lr" else "")
                    told = f"gives {value!r} for update {update}; {needed}"
                    raise ConfigError(config_key(optimizer, name), told)

    def of(self, optimizer: str) -> list[str]:
        """The fields of a named optimizer that change, whichever group's."""
        own = [key.split(".", 2)[2] for key in self.fields if key.startswith(f"{optimizer}.")]
        return list(dict.fromkeys(own))

    def write(self, num_updates: int) -> None:
        """Write every field for the update after `num_updates` completed ones."""
        for field in self.fields.values():
            field.write(num_updates)

    def values(self, update: int) -> dict[str, float]:
        """What every field is in an update, by its name in the metrics."""
        return {self.metric_names[key]: field.value(update) for key, field in self.fields.items()}

    def curves(self, updates: Sequence[int]) -> dict[str, list[float]]:
        """The fields that are functions of the update, in these updates, by their names in the metrics."""
        return {self.metric_names[key]: [self.fields[key].value(n) for n in updates] for key in self._pure}

    def observe(self, row: Mapping[str, float]) -> None:
        """Tell the schedules that depend on them an evaluation's metrics."""
        for plateau in self._plateaus.values():
            plateau.observe(row)

    def state_dict(self) -> dict[str, Any]:
        return {name: plateau.state_dict() for name, plateau in self._plateaus.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, plateau in self._plateaus.items():
            plateau.load_state_dict(state[name])


def _number(group: Mapping[str, Any], field: str) -> float | None:
    """The value of a field, or of one in a tuple; None if it is not there or no number."""
    name, _, position = field.partition(".")
    value = group.get(name)
    if position:
        items = value if isinstance(value, (tuple, list)) else ()
        value = items[int(position)] if position.isdigit() and int(position) < len(items) else None
    return None if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)) else float(value)


def _no_number(optimizer: Optimizer, groups: list[int], field: str, key: str) -> ConfigError:
    names = dict.fromkeys(itertools.chain.from_iterable(optimizer.param_groups[n] for n in groups))
    own = [name for name in names if name != "params" and not name.startswith("initial_")]
    fields = [field for name in own for field in (name, f"{name}.0", f"{name}.1")]
    numbers = [f for f in fields if any(_number(optimizer.param_groups[n], f) is not None for n in groups)]
    told = f"{type(optimizer).__name__} has no number {field!r} to schedule{suggestion(field, numbers, 'It has')}"
    return ConfigError(key, told.replace("It has:", "It has"))


def config_prefix(optimizer: str) -> str:
    """What the config keys of a named optimizer begin with; those of `main`, the only one, with nothing."""
    return "" if optimizer == "main" else f"optimizers.{optimizer}."


def config_key(optimizer: str, field: str) -> str:
    """Where a field's schedule is configured."""
    group, _, name = field.rpartition("/")
    prefix = config_prefix(optimizer)
    if group:
        return f"{prefix}param_groups.patterns.{group}.schedules.{name}"
    return f"{prefix}scheduler" if field == "lr" else f"{prefix}schedules.{field}"


def metric_prefix(optimizer: str) -> str:
    """What the metrics of a named optimizer begin with; those of `main`, the only one, with nothing."""
    return "" if optimizer == "main" else f"{optimizer}/"


def _metric_name(optimizer: str, groups: list[str | None], group_idx: int, field: str) -> str:
    title = groups[group_idx]
    suffix = str(group_idx) if title is None or Counter(groups)[title] > 1 else title
    return metric_prefix(optimizer) + field + ("" if group_idx == 0 else f"/{suffix}")
