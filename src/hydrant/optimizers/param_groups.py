"""Param groups: which parameters share fields, and the learning rates of models of different widths (muP)."""

import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from torch import nn

from hydrant.errors import ConfigError, quoted, suggestion
from hydrant.files.plain_values import NotNegative, PositiveRatio, check_value

_EXPONENTS = {
    "adam": {"hidden": -1.0},
    "sgd": {"input": 1.0, "output": 1.0},
    "muon": {"hidden": -0.5},
    "spectral": {},
}
"""The lr of a role is multiplied by the width ratio to this exponent, by the kind of optimizer; 0 if absent."""

RULES = tuple(_EXPONENTS)


def mup_scales(model: nn.Module, rule: str | None) -> dict[str, tuple[str, float]]:
    """Return the role and the scale of the lr by parameter name; nothing without a rule.

    `adam` and `sgd` are those of Yang et al., "Tensor Programs V", 2022, table 8, whose output weights have a
    multiplier in the model. The others follow from the condition that updates of a hidden matrix have a spectral norm
    that does not depend on the width (Yang et al., "A spectral condition for feature learning", 2023): `spectral` is
    for optimizers whose updates have it, and `muon` for those that scale them to the size of AdamW's, which makes the
    norm grow as the root of the width.

    Args:
        model: its `mup_roles()` returns, by parameter name, `input`, `hidden` or `output`, and the width ratio.
        rule: a name of `RULES`.

    Raises:
        ConfigError: a model with muP has no rule, or a model without muP has one.
    """
    roles: dict[str, tuple[str, float]] = getattr(model, "mup_roles", dict[str, Any])()  # pyrefly: ignore[not-callable]  # the model's method
    if bool(roles) != bool(rule):
        state = "is parametrized by muP, so it needs a rule" if roles else "is not parametrized by muP"
        remedy = f"give one of {', '.join(RULES)}, and the model a mup_base_width; or neither"
        raise ConfigError("mup", f"{type(model).__name__} {state}", remedy=remedy)
    exponents = _EXPONENTS[rule] if rule else {}
    return {name: (role, ratio ** exponents.get(role, 0.0)) for name, (role, ratio) in roles.items()}


_KEY = "param_groups"
_PATTERN_FIELDS = ("match", "lr_scale", "schedules")
"""Fields of a pattern that are not fields of the optimizer."""


def split_parameters(
    task: nn.Module, parts: Mapping[str, Sequence[str] | None], *, takes_turns: bool
) -> dict[str, dict[str, nn.Parameter]]:
    """Return the trained parameters of a task by optimizer. Those that take turns may share some.

    Args:
        task: its parameters are named as in checkpoints.
        parts: by optimizer, the beginnings of the names of its parameters, in whole words, such as `generator`.
            None stands for all parameters that no other optimizer trains.
        takes_turns: the optimizers have `update_order`.

    Raises:
        ConfigError: an optimizer has no parameter, or a parameter has no optimizer, or two that update at once.
    """
    # By their names in the model. The task's other parameters keep their whole names, and so does a parameter of the
    # model whose name one of them has.
    trained = {name: p for name, p in task.named_parameters() if p.requires_grad}
    short = {name: name.removeprefix("model.") for name in trained}
    named = {name if short[name] in trained else short[name]: p for name, p in trained.items()}
    owners = _find_owners(named, parts)
    rest = [optimizer for optimizer, beginnings in parts.items() if beginnings is None]
    split: dict[str, dict[str, nn.Parameter]] = {optimizer: {} for optimizer in parts}
    for name, parameter in named.items():
        first, *others = found = owners[name] or rest or [""]
        if not first or (others and not takes_turns):
            key = f"optimizers.{(others or list(parts))[0]}.parts"
            message = f"{name} is trained by {first} already" if first else f"no optimizer trains {name}"
            remedy = "leave it to one optimizer, or let them take turns (update_order)"
            raise ConfigError(key, message, remedy=remedy)
        for optimizer in found:
            split[optimizer][name] = parameter
    for optimizer, parameters in split.items():
        if not parameters:
            key = f"optimizers.{optimizer}.parts" if len(parts) > 1 else "model"
            raise ConfigError(key, "has no parameters to train", remedy="give it some")
    return split


def param_groups(
    model: nn.Module,
    named: Mapping[str, nn.Parameter],
    lr: float | None,
    *,
    no_decay: bool,
    layer_decay: float | None,
    layer_decay_min_scale: float,
    patterns: Mapping[str, Mapping[str, Any]],
    mup: str | None,
) -> list[dict[str, Any]]:
    """Return the param groups of a model, each with a `name`; by default a single group, `all`.

    Args:
        model: its layers and its `no_weight_decay()` are used.
        named: the parameters by name.
        lr: the optimizer's learning rate, which layers and patterns may scale.
        no_decay: no weight decay for vectors (norms, biases) and for what the model's `no_weight_decay()` names.
        layer_decay: the lr of each layer is this ratio of the next layer's, as timm groups and scales them
            (Clark et al., "ELECTRA", 2020), but not below `layer_decay_min_scale`.
        layer_decay_min_scale: the least scale of a layer's lr.
        patterns: by group name, `match`, a regular expression for the beginning of a parameter's name (`.*norm`
            matches anywhere), and fields of the optimizer, or `lr_scale`, a ratio of its lr. A parameter belongs to
            the first pattern that matches it, and `layer_decay` does not apply to it.
        mup: the rule for the lr of a model with muP (see `mup_scales`). It does not apply to a pattern with an lr.

    Raises:
        ConfigError: a pattern matches nothing or is no regular expression, the model has no layers, the optimizer has
            no lr to scale, or the rule of muP does not fit the model.
    """
    titles = _match_patterns(patterns, list(named))
    by_layer, by_width = _layer_scales(model, layer_decay, layer_decay_min_scale), mup_scales(model, mup)
    undecayed = tuple[str, ...](getattr(model, "no_weight_decay", tuple)())  # pyrefly: ignore[not-callable]  # the model's method
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for name, parameter in named.items():
        pattern = titles.get(name)
        rule = {} if pattern is None else patterns[pattern]
        fields = {key: value for key, value in rule.items() if key not in _PATTERN_FIELDS}
        # The scales of the lr, each with its word in the name of the group.
        scales = [by_layer.get(name)] if pattern is None else [(pattern, rule.get("lr_scale"))]
        scales += [by_width.get(name)] if rule.keys().isdisjoint({"lr", "lr_scale"}) else []
        words = [scale[0] for scale in scales if scale]
        if ratios := [scale[1] for scale in scales if scale and scale[1] is not None]:
            if lr is None:
                reason = "there is none to scale, because this optimizer chooses its own"
                raise ConfigError("optimizer.lr", reason)
            fields["lr"] = fields.get("lr", lr) * math.prod(ratios)
        if no_decay and "weight_decay" not in fields:
            is_exempt = parameter.ndim <= 1 or any(fnmatch(name, n) for n in ("*.bias", *undecayed))
            words.append("no_decay" if is_exempt else "decay")
            fields |= {"weight_decay": 0.0} if is_exempt else {}
        group = {"params": [], "name": "_".join(words) or "all", "pattern": pattern, **fields}
        groups.setdefault((pattern, *ratios, *words), group)["params"].append(parameter)
    return list(groups.values())


def check_fields(groups: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any], optimizer: str) -> None:
    """Check that the optimizer has every field of the groups, because torch would silently ignore others.

    Raises:
        ConfigError: names the first unknown field.
    """
    for group in groups:
        for field in group.keys() - {"params", "name", "pattern"} - defaults.keys():
            key = _KEY if group["pattern"] is None else f"{_KEY}.patterns.{group['pattern']}.{field}"
            known = [name for name in defaults if not name.startswith("_")]
            options = suggestion(field, known, "It has")
            message = f"{optimizer} has no {field!r} for the group {group['name']}"
            raise ConfigError(key, message, remedy=options)


def sparse_parameters(task: nn.Module) -> set[int]:
    """Return the `id`s of the parameters whose gradients are sparse, as those of an embedding with `sparse=True`."""
    with_sparse = [module for module in task.modules() if getattr(module, "sparse", False) is True]
    return {id(p) for module in with_sparse for p in module.parameters(recurse=False)}


def _find_owners(names: Mapping[str, Any], parts: Mapping[str, Sequence[str] | None]) -> dict[str, list[str]]:
    """Return, by parameter name, the optimizers whose parts include it."""
    owners: dict[str, list[str]] = {name: [] for name in names}
    for optimizer, beginnings in parts.items():
        for beginning in beginnings or ():
            matches = [name for name in names if f"{name}.".startswith(f"{beginning}.")]
            if not matches:
                known = ", ".join(dict.fromkeys(quoted(name.partition(".")[0]) for name in names))
                message = f"no trained parameter starts with {beginning}"
                raise ConfigError(f"optimizers.{optimizer}.parts", message, remedy=f"there are {known}")
            for name in matches:
                owners[name] += [optimizer] * (optimizer not in owners[name])
    return owners


def _match_patterns(patterns: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, str]:
    """Return the first pattern that matches, by the name of each parameter that one matches."""
    titles = dict[str, str]()
    for title, rule in patterns.items():
        key, match = f"{_KEY}.patterns.{title}", rule.get("match")
        check_value(f"{key}.lr_scale", NotNegative | None, rule.get("lr_scale"))
        try:
            pattern: re.Pattern[str] = re.compile(match)  # pyrefly: ignore[no-matching-overload]  # None is a TypeError
        except (re.error, TypeError) as error:
            needs = f"a regular expression, such as head ({error})"
            raise ConfigError(f"{key}.match", needs=needs, got=match) from error
        matches = [name for name in names if name not in titles and pattern.match(name)]
        if not matches:
            examples = names if len(names) <= 6 else [*names[:3], "...", *names[-3:]]
            message = f"{match!r} matches no parameter, or only those of an earlier pattern"
            raise ConfigError(f"{key}.match", message, remedy=f"there are {', '.join(map(quoted, examples))}")
        titles |= dict.fromkeys(matches, title)
    return titles


def _layer_scales(model: nn.Module, decay: float | None, min_scale: float) -> dict[str, tuple[str, float]]:
    """Return the layer and the scale of the lr by parameter name; nothing if `decay` is None."""
    if decay is None:
        return {}
    check_value(f"{_KEY}.layer_decay", PositiveRatio, decay)
    from timm.optim import param_groups_layer_decay

    groups = param_groups_layer_decay(model, weight_decay=1.0, layer_decay=decay, min_scale=min_scale)
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    if decay < 1 and len(set(scales.values())) == 1:
        message = f"timm finds no layers in {type(model).__name__}"
        remedy = "give it a group_matcher, or patterns with lr_scale"
        raise ConfigError(f"{_KEY}.layer_decay", message, remedy=remedy)
    layers = {scale: (f"layer_{n}", scale) for n, scale in enumerate(sorted(set(scales.values())))}
    return {name: layers[scales[id(p)]] for name, p in model.named_parameters() if id(p) in scales}
