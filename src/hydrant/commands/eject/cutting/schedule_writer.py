"""Schedules as functions of the update."""

from __future__ import annotations

import ast
import inspect
import itertools
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import Any

from hydrant.clock import Clock
from hydrant.commands.eject.bundle import PROGRAM, read_module, renamed
from hydrant.commands.eject.curve_source import CLOCK_IMPORTS, plain_curve, scaled, simplified
from hydrant.commands.eject.cutting.collector import Collector, plain
from hydrant.commands.eject.layout import keyword
from hydrant.schedules.base import split_run
from hydrant.schedules.composed import _spans  # pyright: ignore[reportPrivateUsage]

_FRAME = ("warmup", "warmup_init_ratio", "cooldown", "noise_ratio", "noise_range", "noise_seed")
_HELPERS = {"_cyclic": "heights", "_one_cycle": "phases"}
"""Functions that make a part of a curve, with the names of what they make."""

_TITLES = {"learning_rate": "learning rate", "betas_0": "first beta", "betas_1": "second beta"}

Imports = dict[str, tuple[str, str | None]]


@dataclass(frozen=True)
class Place:
    """Where the function of a schedule stands.

    Args:
        name: of the function.
        base: the value that the schedule multiplies, as source; empty for the ratio itself.
        prefix: begins the names of what the function needs.
    """

    name: str
    base: str
    prefix: str

    def times(self, ratio: str) -> str:
        """Return the source of the value of a ratio."""
        is_operation = isinstance(ast.parse(ratio, mode="eval").body, ast.BinOp)
        return f"{self.base} * {f'({ratio})' if is_operation else ratio}" if self.base else ratio


class ScheduleWriter:
    """Writes schedules into a program as `def name(update: int) -> float`."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def write(self, node: Mapping[str, Any], clock: Clock, place: Place) -> None:
        """Write the function of a schedule with its frame: warmup, cooldown and noise."""
        prefix = place.prefix
        if str(node["_target_"]).endswith(".Plateau"):
            self._write_plateau(node, clock, place)
            return
        if node["noise_ratio"]:
            self.write({**node, "noise_ratio": 0.0}, clock, Place(f"{prefix}smooth_ratio", "", prefix))
            self._write_noise(node, clock, f"{prefix}noise")
            text = f"{prefix}smooth_ratio(update) * {prefix}noise(update)"
            self._function(place, [], text, f"{prefix}smooth_ratio", f"{prefix}noise")
            return
        warmup, length = split_run(clock, node["warmup"], node["cooldown"])
        is_whole = length == clock.total_updates == self._collector.plan.clock.total_updates
        end = "NUM_UPDATES" if is_whole else self._constant(prefix, "curve_length", length, "updates")
        if length == clock.total_updates:
            self._write_curve(node, clock, length, end, place)
            return
        ratio = f"{prefix}ratio"
        self._write_curve(node, clock.since(warmup), max(length, 1), end, Place(ratio, "", prefix))
        lines, at = list[str](), "update"
        if warmup:
            updates = self._constant(prefix, "warmup", warmup, "updates")
            comment = "of the value, in the first update"
            start = self._constant(prefix, "warmup_init_ratio", node["warmup_init_ratio"], comment)
            rise = place.times(f"{start} + ({ratio}(0) - {start}) * update / {updates}")
            lines, at = [f"if update < {updates}:", f"    return {rise}"], f"update - {updates}"
        at = f"min({at}, {end})" if warmup + length < clock.total_updates else at
        self._function(place, lines, f"{ratio}({at})", ratio)

    def _write_curve(
        self, node: Mapping[str, Any], clock: Clock, length: int, end: str, place: Place
    ) -> None:
        """Write the curve between warmup and cooldown."""
        target = str(node["_target_"])
        match target.rpartition(".")[2]:
            case "product":
                names = self._write_parts(node, dict.fromkeys(node["schedules"], (0, length)), clock, place)
                self._function(place, [], " * ".join(f"{name}(update)" for name in names), *names)
            case "sequential":
                self._write_sequential(node, clock, length, place)
            case "lambda_":
                self._write_lambda(node, length, place)
            case _:
                self._write_own(inspect.unwrap(pkgutil.resolve_name(target)), node, clock, length, end, place)

    def _write_parts(
        self, node: Mapping[str, Any], spans: Mapping[str, tuple[int, int]], clock: Clock, place: Place
    ) -> list[str]:
        """Write the schedules of which another one is made; return their names."""
        names = list[str]()
        for part, (start, length) in spans.items():
            names.append(f"{place.prefix}{part}")
            of_part = replace(clock.since(start) if start else clock, total_updates=length)
            self.write(node["schedules"][part], of_part, Place(names[-1], "", f"{names[-1]}_"))
        return names

    def _write_sequential(self, node: Mapping[str, Any], clock: Clock, length: int, place: Place) -> None:
        lengths: Mapping[str, Any] = node["lengths"]
        sizes = _spans(clock, {name: lengths[name] for name in node["schedules"]})
        [last] = [name for name in lengths if lengths[name] is None]
        sizes[last] = length - sum(sizes.values())
        starts = itertools.accumulate((sizes[name] for name in node["schedules"]), initial=0)
        spans = {name: (start, sizes[name]) for name, start in zip(node["schedules"], starts, strict=False)}
        names, lines = self._write_parts(node, spans, clock, place), list[str]()
        constants = [self._constant(f"{name}_", "start", start, "update") if start else ""
                     for name, (start, _) in zip(names, spans.values(), strict=True)]  # fmt: skip
        calls = [f"{name}(update - {start})" if start else f"{name}(update)"
                 for name, start in zip(names, constants, strict=True)]  # fmt: skip
        for call, following in itertools.zip_longest(calls[:-1], constants[1:]):
            lines += [f"if update < {following}:", f"    return {place.times(call)}"]
        self._function(place, lines, calls[-1], *names)

    def _write_lambda(self, node: Mapping[str, Any], length: int, place: Place) -> None:
        """Write the schedule of a user's function."""
        target: str = node["fn"]["_target_"]
        function = pkgutil.resolve_name(target)
        imports: Imports = {function.__name__: (function.__module__, function.__name__)}
        keywords = {key: value for key, value in node["fn"].items() if key[0] != "_"}
        words = "".join(
            f", {keyword(key, self._constant(place.prefix, key, v))}" for key, v in keywords.items()
        )
        if not node["cumulative"]:
            self._function(place, [], f"float({function.__name__}(update{words}))", **imports)
            return
        self._collector.write(
            f"{place.prefix}ratios",
            "schedule",
            f"{place.prefix}ratios = list(accumulate((float({function.__name__}(update{words})) "
            f"for update in range(1, {length + 1})), mul, initial=1.0))\n",
            accumulate=("itertools", "accumulate"),
            mul=("operator", "mul"),
            **imports,
        )
        self._function(place, [], f"{place.prefix}ratios[update]", f"{place.prefix}ratios")

    def _write_own(
        self, curve: Any, node: Mapping[str, Any], clock: Clock, length: int, end: str, place: Place
    ) -> None:
        """Write a curve: as a function of the update, or as one that returns it, if it computes values before."""
        prefix = place.prefix
        arguments = {key: value for key, value in node.items() if key[0] != "_" and key not in _FRAME}
        known = {**arguments, "clock": clock, "end": length}
        names = {key: self._constant(prefix, key, value) for key, value in arguments.items()}
        module = read_module(curve.__module__)
        imports: Imports = {**module.imports, **CLOCK_IMPORTS}
        imports |= {n: (curve.__module__, n) for n in module.definitions}
        text = plain_curve(curve, known, {**names, "end": end})
        if text is not None:
            text = renamed(
                text.replace("def ratio(k: int)", f"def {place.name}(update: int)"), {"k": "update"}
            )
            text = scaled(text, place.base) if place.base else text
            self._collector.write(place.name, "schedule", text, **imports)
            return
        made = {curve.__name__: curve.__name__, **_HELPERS}
        makers = {name: f"make_{prefix}{title}" for name, title in made.items()}
        for name, maker in makers.items():
            if name == curve.__name__ or re.search(rf"\b{name}\(", inspect.getsource(curve)):
                source = simplified(dedent(inspect.getsource(getattr(inspect.getmodule(curve), name))), known)
                needed = {**imports, **_own(*makers.values())}
                self._collector.write(maker, "schedule", renamed(source, makers), **needed)
        maker = makers[curve.__name__]
        call = f"{maker}({', '.join([end, *(keyword(key, constant) for key, constant in names.items())])})"
        ratio = f"{prefix}ratio" if place.base else place.name
        self._collector.write(ratio, "schedule", f"{ratio} = {call}\n", **_own(maker))
        if place.base:
            self._function(place, [], f"{ratio}(update)", ratio)

    def _write_plateau(self, node: Mapping[str, Any], clock: Clock, place: Place) -> None:
        """Write the schedule that depends on a metric."""
        words = {"mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "eps"}
        settings = {key: value for key, value in node.items() if key in words} | {"min_lr": node["min_ratio"]}
        names = {key: self._constant("plateau_", key, value) for key, value in settings.items()}
        self._constant("plateau_", "metric", node["metric"], "after each evaluation")
        text = (
            "# Its lr is the ratio of the learning rate; the optimizer trains nothing.\n"
            "plateau = ReduceLROnPlateau(SGD([torch.zeros(1)], lr=1.0), "
            f"{', '.join(f'{key}={name}' for key, name in names.items())})\n"
        )
        self._collector.write(
            "plateau", "schedule", text, SGD=("torch.optim", "SGD"), torch=("torch", None),
            ReduceLROnPlateau=("torch.optim.lr_scheduler", "ReduceLROnPlateau"),
        )  # fmt: skip
        lines, warmup = (
            ['ratio = plateau.optimizer.param_groups[0]["lr"]'],
            split_run(clock, node["warmup"], 0)[0],
        )
        if warmup:
            updates = self._constant("", "warmup", warmup, "updates")
            start = self._constant("", "warmup_init_ratio", node["warmup_init_ratio"], "in the first update")
            rise = place.times(f"{start} + (ratio - {start}) * update / {updates}")
            lines += [f"if update < {updates}:", f"    return {rise}"]
        self._function(place, lines, "ratio", "plateau")

    def _write_noise(self, node: Mapping[str, Any], clock: Clock, name: str) -> None:
        start, end = (clock.updates(bound, "noise_range") for bound in node["noise_range"])
        prefix = name.removesuffix("noise")
        limit = self._constant(prefix, "noise_ratio", node["noise_ratio"], "the largest change")
        seed = self._constant(prefix, "noise_seed", node["noise_seed"])
        text = (
            f"def {name}(update: int) -> float:\n"
            f'    """Return 1 plus a random number between plus and minus {limit}, the same in every run."""\n'
            f"    if not {start} <= update < {end}:\n"
            "        return 1.0\n"
            f"    generator = torch.Generator().manual_seed({seed} + update)\n"
            f"    while abs(drawn := torch.randn(1, generator=generator).item()) >= {limit}:\n"
            "        pass\n"
            "    return 1.0 + drawn\n"
        )
        self._collector.write(name, "schedule", text, torch=("torch", None))

    def _constant(self, prefix: str, key: str, value: Any, comment: str = "") -> str:
        """Add a constant; return its name."""
        name, parts = f"{prefix}{key}".upper(), self._collector.parts
        if name in parts.constants and parts.known[name] != plain(value):
            name = f"SCHEDULE_{name}"
        return self._collector.constant(name, plain(value), comment, group="The optimizer and its schedule.")

    def _function(
        self, place: Place, lines: list[str], result: str, *own: str, **imports: tuple[str, str | None]
    ) -> None:
        """Write a function of the update, of some lines and the ratio that it returns at last."""
        title = _TITLES.get(place.name, place.name.replace("_", " "))
        doc = f'"""Return the {title} of an update; the first one is 0."""'
        body = "".join(f"    {line}\n" for line in (doc, *lines, f"return {place.times(result)}"))
        text = f"def {place.name}(update: int) -> float:\n{body}"
        self._collector.write(place.name, "schedule", text, **{**imports, **_own(*own)})


def _own(*names: str) -> Imports:
    """Return where definitions come from that are written for a config."""
    return {name: (f"{PROGRAM}.parts", name) for name in names}
