"""The optimizer: its call, its parameter groups, and what it needs from the loop."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any

from torch import nn
from torch.optim import Adagrad

from hydrant.commands.eject.couplings import PROGRAM
from hydrant.commands.eject.cutting.collector import Collector, plain
from hydrant.commands.eject.layout import comment, literal, pattern_literal
from hydrant.commands.eject.parts import Origin
from hydrant.optimizers.kinds import has_modes, needs_closure
from hydrant.optimizers.param_groups import param_groups, sparse_parameters, split_parameters
from hydrant.training.prepare.dry_run import scaled_lr

_OPTIMIZER = "The optimizer and its schedule."
TRAINED = "[p for p in model.parameters() if p.requires_grad]"

Imports = dict[str, Origin]


def cut_optimizer(collector: Collector) -> None:
    """Add the optimizer, its settings and the clipping of its gradients."""
    config = collector.config
    [entry] = collector.plan.optimizers.entries.values()
    node = {**config["optimizer"], **scaled_lr(config)}
    if entry.optimizer.defaults.get("fused") and node.get("fused") is None and "base" not in node:
        # The fastest kernel, which Hydrant chooses: that of Adagrad is for the CPU alone. As source, for `_arguments`.
        is_adagrad = isinstance(entry.optimizer, Adagrad)
        node["fused"] = 'True if DEVICE.type == "cpu" else None' if is_adagrad else "True"
    imports: Imports = {}
    is_frozen = any(not parameter.requires_grad for parameter in collector.plan.task.model.parameters())
    first = TRAINED if is_frozen else "model.parameters()"  # LBFGS adds up all that it gets, in its order
    if _cut_groups(collector, node):
        first, imports["param_groups"] = "param_groups(model)", (f"{PROGRAM}.optimizer", "param_groups")
    text = f"{_callee(node, imports)}({first}, {_arguments(collector, node, 'OPTIMIZER', imports)})"
    collector.express("make_optimizer", text, **imports)
    collector.know(
        NEEDS_CLOSURE=needs_closure(entry.optimizer),
        HAS_MODES=has_modes(entry.optimizer),
        HAS_SPARSE=bool(sparse_parameters(collector.plan.task)),
    )
    limits = ("max_grad_norm", "max_grad_value", "agc")
    for key in limits:
        collector.constant(key.upper(), config[key], group=_OPTIMIZER)
    in_order = all(map(is_, entry.parameters, collector.plan.task.model.parameters()))
    collector.know(CLIPS=any(config[key] is not None for key in limits), IN_ORDER=in_order)


def _callee(node: Mapping[str, Any], imports: Imports) -> str:
    """Return the name of what makes the optimizer of a config; add where it comes from."""
    match str(node["_target_"]).removeprefix("hydrant.optimizers."):
        case "timm_optimizer":
            name, origin = "create_optimizer_v2", "timm.optim"
        case "library_optimizer":
            name, origin = _library_class(node).__name__, "pytorch_optimizer"
        case _:
            kind = pkgutil.resolve_name(node["_target_"])
            if not kind.__module__.startswith("hydrant."):
                imports["torch"] = ("torch", None)
                return f"torch.optim.{kind.__name__}"
            name, origin = kind.__name__, kind.__module__
    imports[name] = (origin, name)
    return name


def _library_class(node: Mapping[str, Any]) -> Any:
    import pytorch_optimizer

    return pytorch_optimizer.load_optimizer(node["name"])


def _arguments(collector: Collector, node: Mapping[str, Any], prefix: str, imports: Imports) -> str:
    """Return the arguments of an optimizer; add their constants and where the names in them come from."""
    target, words = str(node["_target_"]), list[str]()
    kind, named = pkgutil.resolve_name(target), {**node}
    if target.endswith(".timm_optimizer"):
        words.append(f"opt={literal(named.pop('name'))}")
        named |= named.pop("kwargs")
    elif target.endswith(".library_optimizer"):
        kind = _library_class(node)
        del named["name"]
        if named["weight_decay"] is None:
            del named["weight_decay"]
    base, fused = named.pop("base", None), named.pop("fused", None)
    if arguments := collector.arguments(named, _OPTIMIZER, prefix, target=kind):
        words.append(arguments)
    parameter = inspect.signature(kind).parameters.get("fused")
    if fused is not None or (parameter is not None and parameter.default is parameter.empty):
        words.append(f"fused={fused}")
    if base is not None:
        imports["partial"] = ("functools", "partial")
        fields = {key: value for key, value in base.items() if key != "lr"}  # the outer one has it
        of_base = [_callee(base, imports), _arguments(collector, fields, "BASE", imports)]
        words.append(f"base=partial({', '.join(filter(None, of_base))})")
    return ", ".join(words)


def _cut_groups(collector: Collector, node: Mapping[str, Any]) -> bool:
    """Add the groups of parameters with other settings, if there are any."""
    model: Any = collector.plan.task.model
    parameters = split_parameters(collector.plan.task, {"main": None})["main"]
    settings = collector.config["param_groups"]
    groups = param_groups(model, parameters, node.get("lr"), mup=collector.config["mup"], **settings)
    if len(groups) == 1 and groups[0].keys() <= {"params", "name", "pattern"}:
        return False
    rows = list[str]()
    for group in groups:
        fields = {k: plain(v) for k, v in group.items() if k not in ("params", "name", "pattern")}
        pattern = _pattern(_names(group["params"], parameters), parameters)
        rows.append(f"    ({pattern_literal(pattern)}, {literal(fields)}),  {comment(group['name'])}")
    begin = "(  # patterns of the names of parameters, with the settings of their group"
    source = "\n".join([begin, *rows, ")"])
    collector.constant("GROUPS", None, group=_OPTIMIZER, source=source)
    return True


def _names(parameters: Iterable[nn.Parameter], named: Mapping[str, nn.Parameter]) -> list[str]:
    by_id = {id(parameter): name for name, parameter in named.items()}
    return [by_id[id(parameter)] for parameter in parameters]


def _pattern(names: Iterable[str], known: Iterable[str]) -> str:
    """Return a regular expression that matches these names and no other known one: numbers vary where they may."""
    chosen, others = list(names), set(known).difference(names)
    parts = list[str]()
    for name in chosen:
        if any(re.fullmatch(part, name) for part in parts):
            continue
        escaped = name.replace(".", r"\.")
        general = re.sub(r"\d+", r"\\d+", escaped)
        for part in (general, escaped):
            if not any(re.fullmatch(part, other) for other in others):
                parts.append(part)
                break
    return "|".join(parts)
