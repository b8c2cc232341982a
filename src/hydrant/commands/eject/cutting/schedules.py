"""The schedules of the optimizer's fields: curves are copied as they are, and called with the run's durations."""

from __future__ import annotations

import inspect
import itertools
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from hydrant.clock import Clock, Interval
from hydrant.clock.interval import rounded_up
from hydrant.commands.eject.couplings import PROGRAM
from hydrant.commands.eject.cutting.collector import Collector
from hydrant.commands.eject.cutting.optimizer import TRAINED
from hydrant.commands.eject.layout import keyword, literal
from hydrant.commands.eject.parts import Origin
from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError
from hydrant.schedules import Plateau, Replay, Schedule, SteppedScheduler
from hydrant.schedules.base import Noise
from hydrant.schedules.composed import _spans  # pyright: ignore[reportPrivateUsage]
from hydrant.training.prepare.build_optimizers import _scheduled  # pyright: ignore[reportPrivateUsage]

_PARTS, _TEMPLATE = f"{PROGRAM}.parts", f"{PROGRAM}.schedule"
_GROUP = "The optimizer and its schedule."


def cut_schedules(collector: Collector) -> None:
    """Add the schedules of the learning rate and of other fields, and the table of the fields.

    Raises:
        ConfigError: a scheduler cannot be ejected.
    """
    plan, config = collector.plan, collector.config
    [entry] = plan.optimizers.entries.values()
    lr_schedule, fields = plan.schedules["main"]["lr"], plan.optimizers.schedules.fields
    is_stepped = isinstance(lr_schedule, SteppedScheduler)
    if is_stepped:
        _cut_stepped(collector)
    else:
        for field, node in _scheduled(config):
            word = field.replace(".", "_")
            writer = _Writer(plan.clock.total_updates)
            source = writer.schedule(node, plan.clock)
            collector.write(f"{word}_schedule", "schedule", f"{word}_schedule = {source}\n", **writer.imports)
    rows, own = list[str](), set[str]()
    for key, field in fields.items():
        path, logged = key.split(".", 2)[2], literal(f"optim/{plan.optimizers.schedules.metric_names[key]}")
        name = literal(field.name) if field.position is None else f"({literal(field.name)}, {field.position})"
        if is_stepped:
            base, schedule = "1.0", f"stepped({literal(field.name)}, {field.position})"
        else:
            base = _base(collector, entry.optimizer.param_groups[field.group_idx], path)
            schedule = f"{path.replace('.', '_')}_schedule"
            own.add(schedule)
        rows.append(f"({logged}, {field.group_idx}, {name}, {base}, {schedule})")
    comment = "  # name in metrics.jsonl, group of parameters, field, what the schedule multiplies, and the schedule"
    table = "".join(f"    {row},\n" for row in rows)
    origins = {"stepped": (_TEMPLATE, "stepped")} | {name: (_PARTS, name) for name in own}
    collector.write("SCHEDULES", "schedule", f"SCHEDULES = ({comment}\n{table})\n", **origins)
    collector.know(
        ONLY_LR=rows == ['("optim/lr", 0, "lr", LR, lr_schedule)'],
        HAS_PLATEAU=isinstance(lr_schedule, Plateau),
        SETS_ENTRIES=any(field.position is not None for field in fields.values()),
    )


def _base(collector: Collector, group: Mapping[str, Any], field: str) -> str:
    """Return the configured value of a field as source: its constant, if it has one."""
    name, _, position = field.partition(".")
    value = float(group[name][int(position)] if position else group[name])
    known = collector.parts.known.get(name.upper())
    if name.upper() not in collector.parts.constants or known is None:
        return literal(value)
    is_same = float(known[int(position)] if position else known) == value
    return literal(value) if not is_same else f"{name.upper()}[{position}]" if position else name.upper()


class _Recorded:
    """A clock that notes what it makes of durations, by the keys of the arguments that have them."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.made = clock, defaultdict[str, list[Any]](list)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def convert(*arguments: Any) -> Any:
            self.made[arguments[-1]].append(getattr(self._clock, name)(*arguments))
            return self.made[arguments[-1]][-1]

        return convert


class _Writer:
    """Writes schedules as the calls that make them, and notes where the names in them come from."""

    def __init__(self, total: int) -> None:
        self._total, self.imports = total, dict[str, Origin]()

    def schedule(self, node: Mapping[str, Any], clock: Clock) -> str:
        """Return the schedule of a config as source, and add where its names come from."""
        made: Any = instantiate_node(node)(clock)
        if isinstance(made, Plateau):
            warmup = {"warmup": clock.updates(node["warmup"], "warmup")}
            return self.call(Plateau, (), {**node, **warmup})
        assert isinstance(made, Schedule)
        curve = self._curve(node, clock.since(made.warmup), max(made.length, 1))
        if made.length == clock.total_updates and made.noise is None:
            return curve
        frame = {key: getattr(made, key) for key in ("warmup", "warmup_init_ratio", "length")}
        noise = "" if made.noise is None else f", noise={self.call(Noise, (), vars(made.noise))}"
        return f"{self.call(Schedule, (), frame)[:-1]}, curve={curve}{noise})"

    def _curve(self, node: Mapping[str, Any], clock: Clock, end: int) -> str:
        make: Any = inspect.unwrap(pkgutil.resolve_name(node["_target_"]))
        names = [name for name, p in inspect.signature(make).parameters.items() if p.kind is p.KEYWORD_ONLY]
        arguments = {name: node[name] for name in names}
        if "schedules" in arguments:
            return self._composed(make, arguments, clock, end)
        recorded = _Recorded(clock)
        objects = {key: instantiate_node(v) if isinstance(v, dict) else v for key, v in arguments.items()}
        make(recorded, end, **objects)
        for key, values in recorded.made.items():
            arguments[key] = values if isinstance(arguments[key], list) else values[0]
        return self.call(make, ("NUM_UPDATES" if end == self._total else str(end),), arguments)

    def _composed(self, make: Any, arguments: Mapping[str, Any], clock: Clock, end: int) -> str:
        """Return what is made of other schedules, all at once or one after the other."""
        nodes, starts = arguments["schedules"], [0]
        lengths, first = dict.fromkeys(nodes, end), ""
        if "lengths" in arguments:
            given = _spans(clock, {part: arguments["lengths"][part] for part in nodes})
            lengths = {part: given.get(part, end - sum(given.values())) for part in nodes}
            starts = list(itertools.accumulate(lengths.values(), initial=0))[:-1]
            first = f"{literal(starts)}, "
        name = f"{make.__name__}_of"
        self.imports[name] = (make.__module__, name)
        spans = zip(nodes.values(), itertools.cycle(starts), lengths.values(), strict=False)
        clocks = [(node, replace(clock.since(start), total_updates=num)) for node, start, num in spans]
        parts = [self.schedule(node, of_part) for node, of_part in clocks]
        return f"{name}({first}[{', '.join(parts)}])"

    def call(self, made: Any, first: Sequence[str], arguments: Mapping[str, Any]) -> str:
        """Return a call as source, and add where its names come from."""
        self.imports[made.__name__] = (made.__module__, made.__name__)
        words = [keyword(key, self._argument(v)) for key, v in arguments.items() if key[0] != "_"]
        return f"{made.__name__}({', '.join([*first, *words])})"

    def _argument(self, value: Any) -> str:
        match value:
            case Interval():
                rounded = ceil if value.rounded is rounded_up else round
                self.imports |= {"Interval": (_TEMPLATE, "Interval"), "ceil": ("math", "ceil")}
                self.imports |= {"Fraction": ("fractions", "Fraction")}
                return f"Interval({literal(value.length)}, {rounded.__name__})"
            case {"_target_": target, **others}:
                function = pkgutil.resolve_name(target)
                self.imports |= {"partial": ("functools", "partial")}
                self.imports[function.__name__] = (function.__module__, function.__name__)
                if not any(key[0] != "_" for key in others):
                    return function.__name__
                return f"partial({self.call(function, (), others).replace('(', ', ', 1)}"
            case _:
                return literal(value)


def _cut_stepped(collector: Collector) -> None:
    """Add a scheduler of torch, which makes steps.

    Raises:
        ConfigError: the scheduler is not one of torch, or the optimizer has several groups or other schedules.
    """
    node, plan = collector.config["scheduler"], collector.plan
    [entry] = plan.optimizers.entries.values()
    factory = instantiate_node(node)
    kind = factory.func
    is_scheduler = isinstance(kind, type) and issubclass(kind, LRScheduler)
    if not is_scheduler or not kind.__module__.startswith("torch."):
        message = f"{node['_target_']} cannot be ejected yet; only schedulers of torch can"
        raise ConfigError("scheduler", message)
    if collector.config["schedules"] or len(entry.optimizer.param_groups) > 1:
        needed = "one group of parameters and without other schedules"
        raise ConfigError("scheduler", f"a stepped scheduler can be ejected only for {needed}")
    replay: Any = Replay.of_config(factory, plan.clock)
    every, make = replay.keywords["every"].length, replay.args[0]
    if every.denominator > 1:
        message = f"{float(every):g} updates cannot be ejected yet"
        raise ConfigError("scheduler.every", message, remedy="give a whole number")
    collector.constant("EVERY", int(every), "updates between two steps of the scheduler", group=_GROUP)
    fields = dict.fromkeys(field.name for field in plan.optimizers.schedules.fields.values())
    collector.constant("FIELDS", tuple(fields), "that the scheduler sets", group=_GROUP)
    writer = _Writer(plan.clock.total_updates)
    scheduler = writer.call(kind, ("optimizer",), make.keywords)
    collector.express("make_scheduler", scheduler, **writer.imports)
    made, alone = collector.parts.expressions["make_optimizer"], "[torch.zeros(1, 1)]"
    text = made.text.replace(TRAINED, alone).replace("model.parameters()", alone)
    collector.express("make_stepped_optimizer", text, **made.imports)
