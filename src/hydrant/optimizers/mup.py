"""Learning rates of models of different widths: the maximal update parametrization."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydrant.errors import ConfigError

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
    roles: dict[str, tuple[str, float]] = getattr(model, "mup_roles", dict[str, Any])()
    if rule is None and roles:
        options = ", ".join(RULES)
        message = "this model has muP, so the lr of its weights depends on the kind of optimizer"
        raise ConfigError("mup", message, remedy=f"give one of {options}")
    if rule is not None and not roles:
        message = f"{type(model).__name__} is not parametrized by muP"
        raise ConfigError("mup", f"{message}; for model=gpt give model.mup_base_width, or leave mup out")
    if rule is None:
        return {}
    exponents = _EXPONENTS[rule]
    return {name: (role, ratio ** exponents.get(role, 0.0)) for name, (role, ratio) in roles.items()}
