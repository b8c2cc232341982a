"""A scheduler of torch, which makes steps."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from hydrant.commands.eject.bundle import PROGRAM
from hydrant.commands.eject.cutting.collector import Collector, plain
from hydrant.commands.eject.cutting.optimizer import TRAINED
from hydrant.commands.eject.layout import keyword, literal
from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError
from hydrant.schedules import Replay

_GROUP = "The optimizer and its schedule."


def write_stepped(collector: Collector) -> None:
    """Write a scheduler of torch as the settings that it makes for each update.

    Raises:
        ConfigError: the scheduler is not one of torch, or the optimizer has several groups or other schedules.
    """
    node, plan = collector.config["scheduler"], collector.plan
    [entry] = plan.optimizers.entries.values()
    kind = instantiate_node(node).func
    if not (
        isinstance(kind, type) and issubclass(kind, LRScheduler) and kind.__module__.startswith("torch.")
    ):
        raise ConfigError(
            "scheduler", f"{node['_target_']} cannot be ejected yet; only schedulers of torch can"
        )
    if collector.config["schedules"] or len(entry.optimizer.param_groups) > 1:
        message = (
            "a stepped scheduler can be ejected only for one group of parameters and without other schedules"
        )
        raise ConfigError("scheduler", message)
    replay: Any = Replay.of_config(instantiate_node(node), plan.clock)
    every, arguments = replay.keywords["every"].length, replay.args[0].keywords
    if every.denominator > 1:
        raise ConfigError(
            "scheduler.every", f"{float(every):g} updates cannot be ejected yet; give a whole number"
        )
    words = "".join(f", {keyword(key, _constant(collector, key, value))}" for key, value in arguments.items())
    made, alone = collector.parts.expressions["make_optimizer"], "[torch.zeros(1, 1)]"
    lines = [
        f'"""Return what {kind.__name__} sets before each update, found with an optimizer that trains nothing."""',
        f"optimizer = {made.text.replace(TRAINED, alone).replace('model.parameters()', alone)}",
        f"scheduler = {kind.__name__}(optimizer{words})",
        "settings = list[dict[str, Any]]()",
        "for update in range(NUM_UPDATES):",
    ]
    closure = "lambda: torch.zeros(())" if collector.parts.known["NEEDS_CLOSURE"] else ""
    step = ["if update > 0:", f"    optimizer.step({closure})", "    scheduler.step()"]
    if every > 1:
        _constant(collector, "every", int(every), "updates between two steps")
        step[0] = "if update > 0 and update % EVERY == 0:"
    names = list(dict.fromkeys(field.name for field in plan.optimizers.schedules.fields.values()))
    row = ", ".join(f"{name}: optimizer.param_groups[0][{name}]" for name in map(literal, names))
    lines += [f"    {line}" for line in (*step, f"settings.append({{{row}}})")]
    lines.append("return settings")
    text = "@functools.cache\ndef stepped_settings() -> list[dict[str, Any]]:\n"
    text += "".join(f"    {line}\n" for line in lines)
    imports: dict[str, tuple[str, str | None]] = {
        **made.imports,
        kind.__name__: ("torch.optim.lr_scheduler", kind.__name__),
    }
    imports |= {"functools": ("functools", None), "Any": ("typing", "Any"), "torch": ("torch", None)}
    collector.write("stepped_settings", "schedule", text, **imports)
    logged = list[str]()
    for key, field in plan.optimizers.schedules.fields.items():
        position = "" if field.position is None else f"[{field.position}]"
        name = literal(f"optim/{key.split('.', 2)[2]}")
        logged.append(f"{name}: settings[{literal(field.name)}]{position}")
    setter = (
        "def set_schedules(optimizer: Optimizer, update: int) -> dict[str, float]:\n"
        '    """Set the scheduled fields of the optimizer for an update; return them as they are logged."""\n'
        "    settings = stepped_settings()[update]\n"
        "    optimizer.param_groups[0] |= settings\n"
        f"    return {{{', '.join(logged)}}}\n"
    )
    own = (f"{PROGRAM}.parts", "stepped_settings")
    collector.write(
        "set_schedules", "schedule", setter, Optimizer=("torch.optim", "Optimizer"), stepped_settings=own
    )
    collector.know(ONLY_LR=False, HAS_PLATEAU=False)


def _constant(collector: Collector, key: str, value: Any, comment: str = "") -> str:
    name = key.upper()
    if name in collector.parts.constants and collector.parts.known[name] != plain(value):
        name = f"SCHEDULE_{name}"
    return collector.constant(name, plain(value), comment, group=_GROUP)
