"""The schedules of the optimizer's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydrant.commands.eject.bundle import PROGRAM
from hydrant.commands.eject.cutting.collector import Collector
from hydrant.commands.eject.cutting.optimizer import optimizer_type
from hydrant.commands.eject.cutting.schedule_writer import Place, ScheduleWriter
from hydrant.commands.eject.cutting.stepped import write_stepped
from hydrant.commands.eject.layout import literal
from hydrant.schedules import SteppedScheduler
from hydrant.training.prepare.build_optimizers import _scheduled  # pyright: ignore[reportPrivateUsage]

_PARTS = f"{PROGRAM}.parts"


def cut_schedules(collector: Collector) -> None:
    """Add the schedules of the learning rate and of other fields, and what writes them."""
    config = collector.config
    [entry] = collector.plan.optimizers.entries.values()
    groups: list[dict[str, Any]] = entry.optimizer.param_groups
    nodes = dict(_scheduled(config))
    if isinstance(next(iter(collector.plan.schedules["main"].values())), SteppedScheduler):
        write_stepped(collector)
        return
    is_simple = list(nodes) == ["lr"] and len(groups) == 1
    kind = str(config["scheduler"]["_target_"])
    collector.know(ONLY_LR=is_simple, HAS_PLATEAU=kind.endswith(".Plateau"))
    values = dict[str, str]()  # by field, the source of its value in a group
    for field, node in nodes.items():
        bases = _bases(groups, field)
        is_one = len(set(bases.values())) == 1
        base = _base_source(collector, field, next(iter(bases.values()))) if is_one else ""
        word = field.replace(".", "_")
        name = "learning_rate" if field == "lr" and is_one else word if is_one else f"{word}_ratio"
        place = Place(name, base, "" if field == "lr" else f"{word}_")
        ScheduleWriter(collector).write(node, collector.plan.clock, place)
        values[field] = f"{name}(update)" if is_one else f"{word} * {name}(update)"
    if not is_simple:
        _write_setter(collector, groups, values)


def _bases(groups: Sequence[Mapping[str, Any]], field: str) -> dict[int, float]:
    """Return the configured value of a field by the position of its group."""
    name, _, position = field.partition(".")
    found = {n: group[name] for n, group in enumerate(groups) if name in group}
    return {n: float(value[int(position)] if position else value) for n, value in found.items()}


def _base_source(collector: Collector, field: str, value: float) -> str:
    """Return the configured value of a field as source: its constant, if it has one."""
    name, _, position = field.partition(".")
    known = collector.parts.known.get(name.upper())
    if name.upper() in collector.parts.constants and known is not None:
        number = known[int(position)] if position else known
        if float(number) == value:
            return f"{name.upper()}[{position}]" if position else name.upper()
    return literal(value)


def _write_setter(
    collector: Collector, groups: Sequence[Mapping[str, Any]], values: Mapping[str, str]
) -> None:
    """Write the function that sets the scheduled fields of all groups."""
    names = collector.plan.optimizers.schedules.metric_names
    suffixes = ["/".join(["", *names[f"main.{n}.lr"].split("/")[1:]]) for n in range(len(groups))]
    columns = {"suffix": suffixes} if len(groups) > 1 else {}
    for field, value in values.items():
        if " * " in value:
            bases = _bases(groups, field)
            columns[field.replace(".", "_")] = [bases.get(n, 0.0) for n in range(len(groups))]  # type: ignore[assignment]
    lines = ['"""Set the scheduled fields of the optimizer for an update; return them as they are logged."""']
    indent = ""
    if len(groups) > 1:
        tables = ", ".join(literal(tuple(column)) for column in columns.values())
        lines += [
            "row: dict[str, float] = {}",
            f"for group, {', '.join(columns)} in zip(optimizer.param_groups, {tables}, strict=True):",
        ]
        indent = "    "
    else:
        lines += ["row, group = dict[str, float](), optimizer.param_groups[0]"]
    for field, value in values.items():
        name, _, position = field.partition(".")
        key = f'f"optim/{field}{{suffix}}"' if len(groups) > 1 else f'"optim/{field}"'
        inner = indent
        if len(_bases(groups, field)) < len(groups):
            lines.append(f'{inner}if "{name}" in group:')
            inner += "    "
        if not position:
            lines.append(f'{inner}group["{name}"] = row[{key}] = {value}')
            continue
        length = max(len(group[name]) for group in groups if name in group)
        items = [f'group["{name}"][{n}]' for n in range(length)]
        items[int(position)] = f"row[{key}]"
        lines += [f"{inner}row[{key}] = {value}", f'{inner}group["{name}"] = ({", ".join(items)})']
    lines.append("return row")
    kind, module = optimizer_type(collector)
    text = f"def set_schedules(optimizer: {kind}, update: int) -> dict[str, float]:\n"
    text += "".join(f"    {line}\n" for line in lines)
    own = {value.partition("(")[0].rpartition(" ")[2]: "" for value in values.values()}
    imports: dict[str, tuple[str, str | None]] = {name: (_PARTS, name) for name in own}
    collector.write("set_schedules", "schedule", text, **{**imports, kind: (module, kind)})
