"""Which parameters an optimizer treats alike: groups with their own lr, decay and other fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from torch import nn

from hydrant.errors import ConfigError, suggestion

_KEY = "param_groups"
_OWN = ("match", "lr_scale", "schedules")
"""What a pattern says besides the fields of the optimizer."""


def divided(task: nn.Module, parts: Mapping[str, Sequence[str] | None]) -> dict[str, dict[str, nn.Parameter]]:
    """The trained parameters of a task by optimizer, then by their names as checkpoints have them.

    Args:
        parts: of each optimizer, the beginnings of the names of what it trains, whole words: `generator`; None is
            what no other one has.

    Raises:
        ConfigError: one has nothing, or a parameter has none or two.
    """
    named = _named(task)
    owners: dict[str, list[str]] = {name: [] for name in named}
    for optimizer, beginnings in parts.items():
        if beginnings is not None and not beginnings:
            raise ConfigError(
                f"optimizers.{optimizer}.parts", "needs a part or more, or null for what is left"
            )
        for beginning in beginnings or ():
            found = [name for name in named if f"{name}.".startswith(f"{beginning}.")]
            if not found:
                known = ", ".join(dict.fromkeys(name.partition(".")[0] for name in named))
                raise ConfigError(
                    f"optimizers.{optimizer}.parts",
                    f"nothing trained is called {beginning}; there are {known}",
                )
            for name in found:
                owners[name] += [optimizer] * (optimizer not in owners[name])
    rest = [optimizer for optimizer, beginnings in parts.items() if beginnings is None]
    if len(rest) > 1:
        raise ConfigError(
            f"optimizers.{rest[1]}.parts", f"{rest[0]} has what is left already; name the parts of one"
        )
    for name, own in owners.items():
        if len(own) > 1:
            raise ConfigError(
                f"optimizers.{own[1]}.parts", f"{name} is trained by {own[0]} already; leave it to one"
            )
        if not own and not rest:
            raise ConfigError(
                f"optimizers.{next(iter(parts))}.parts", f"no optimizer trains {name}; add it to one"
            )
    divisions = {o: {n: p for n, p in named.items() if (owners[n] or rest) == [o]} for o in parts}
    for optimizer, own in divisions.items():
        if not own and len(parts) > 1:
            raise ConfigError(
                f"optimizers.{optimizer}.parts", "the others train everything; leave it something"
            )
    return divisions


def param_groups(
    model: nn.Module,
    named: Mapping[str, nn.Parameter],
    lr: float | None,
    *,
    no_decay: bool,
    layer_decay: float | None,
    layer_decay_min_scale: float,
    patterns: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Parameters of a model in groups, each with a `name`; one group, `all`, if nothing is asked for.

    Args:
        named: the parameters, by their names.
        lr: the optimizer's, of which layers and patterns may have a share.
        no_decay: no weight decay for vectors (norms, biases) and for what the model's `no_weight_decay()` names.
        layer_decay: the lr of each layer is this share of the next one's, as timm groups and scales them
            (Clark et al., "ELECTRA", 2020), but not below `layer_decay_min_scale`.
        patterns: by group name, `match`, a regular expression for the beginning of a parameter's name as
            checkpoints have it (`.*norm` for what contains it), and fields of the optimizer, or `lr_scale`, a
            share of its lr. The first that matches has the parameter, and layers do not scale it.

    Raises:
        ConfigError: a pattern matches nothing or is none; there are no layers to tell apart; no lr to scale.
    """
    find = _finder(patterns, list(named))
    scales = _layer_scales(model, layer_decay, layer_decay_min_scale)
    layers = {scale: layer for layer, scale in enumerate(sorted(set(scales.values())))}
    undecayed: set[str] = set(getattr(model, "no_weight_decay", set)())
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for name, parameter in named.items():
        pattern = find(name)
        rule = patterns[pattern] if pattern is not None else {}
        fields = {key: value for key, value in rule.items() if key not in _OWN}
        scale = rule.get("lr_scale") if pattern is not None else scales.get(name)
        words = [pattern] if pattern is not None else [f"layer_{layers[scale]}"] if scale is not None else []
        if scale is not None:
            fields["lr"] = _scaled(lr, scale)
        if no_decay and "weight_decay" not in fields:
            named_by_model = any(fnmatch(name, wanted) for wanted in undecayed)
            is_exempt = parameter.ndim <= 1 or name.endswith(".bias") or named_by_model
            words.append("no_decay" if is_exempt else "decay")
            fields |= {"weight_decay": 0.0} if is_exempt else {}
        group = {"params": [], "name": "_".join(words) or "all", "pattern": pattern, **fields}
        groups.setdefault((pattern, *words), group)["params"].append(parameter)
    _refuse_namesakes(list(groups.values()))
    return list(groups.values())


def _named(task: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters by their names in the model; what is the task's own goes by its whole name."""
    trained = {name: p for name, p in task.named_parameters() if p.requires_grad}
    short = {name: name.removeprefix("model.") for name in trained}
    return {
        name if short[name] != name and short[name] in trained else short[name]: p
        for name, p in trained.items()
    }


def _refuse_namesakes(groups: Sequence[Mapping[str, Any]]) -> None:
    titles = [group["name"] for group in groups]
    for group in groups:
        if group["pattern"] is not None and titles.count(group["name"]) > 1:
            key = f"{_KEY}.patterns.{group['pattern']}"
            raise ConfigError(key, f"another group is called {group['name']} already; choose another name")


def check_fields(groups: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any], optimizer: str) -> None:
    """Refuse fields that an optimizer does not have: torch would keep them and do nothing.

    Raises:
        ConfigError: names the first.
    """
    for group in groups:
        for field in group.keys() - {"params", "name", "pattern"} - defaults.keys():
            key = _KEY if group["pattern"] is None else f"{_KEY}.patterns.{group['pattern']}.{field}"
            known = [name for name in defaults if not name.startswith("_")]
            told = f"{optimizer} has no {field!r} for the group {group['name']}{suggestion(field, known, 'It has')}"
            raise ConfigError(key, told.replace("It has:", "It has"))


def _finder(patterns: Mapping[str, Any], names: list[str]) -> Callable[[str], str | None]:
    compiled: dict[str, re.Pattern[str]] = {}
    for title, rule in patterns.items():
        key = f"{_KEY}.patterns.{title}.match"
        if not isinstance(rule, Mapping) or not isinstance(rule.get("match"), str):
            raise ConfigError(key, "needs a regular expression; give match, such as head")
        scale = rule.get("lr_scale")
        if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float) or scale < 0):
            raise ConfigError(f"{_KEY}.patterns.{title}.lr_scale", f"needs a number from 0 on, not {scale!r}")
        if scale is not None and "lr" in rule:
            raise ConfigError(f"{_KEY}.patterns.{title}.lr_scale", "there is an lr too; give one of the two")
        try:
            compiled[title] = re.compile(rule["match"])
        except re.error as error:
            raise ConfigError(key, f"{rule['match']!r} is no regular expression: {error}") from error

    def find(name: str) -> str | None:
        return next((title for title, pattern in compiled.items() if pattern.match(name)), None)

    for title in compiled:
        if title not in map(find, names):
            shown = ", ".join(names[:3] + ["..."] * (len(names) > 6) + names[max(len(names) - 3, 3) :])
            told = f"{patterns[title]['match']!r} matches no parameter that is left for it; they are {shown}"
            raise ConfigError(f"{_KEY}.patterns.{title}.match", told)
    return find


def _layer_scales(model: nn.Module, decay: float | None, min_scale: float) -> dict[str, float]:
    if decay is None:
        return {}
    if not 0 < decay <= 1:
        raise ConfigError(f"{_KEY}.layer_decay", f"needs a number above 0, up to 1; not {decay}")
    from timm.optim import param_groups_layer_decay

    found = param_groups_layer_decay(model, weight_decay=1.0, layer_decay=decay, min_scale=min_scale)
    scales = {id(p): group["lr_scale"] for group in found for p in group["params"]}
    if decay < 1 and len(set(scales.values())) == 1:
        told = f"{type(model).__name__} has no layers that could be told apart; give patterns with lr_scale instead"
        raise ConfigError(f"{_KEY}.layer_decay", told)
    return {name: scales[id(p)] for name, p in model.named_parameters() if id(p) in scales}


def _scaled(lr: float | None, scale: float) -> float:
    if lr is None:
        raise ConfigError("optimizer.lr", "there is none to scale; this optimizer finds its own")
    return lr * scale
