"""Collects the constants and the parts of a program."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Mapping
from typing import Any

from hydrant.commands.eject.couplings import PROGRAM
from hydrant.commands.eject.layout import check_name, keyword, literal
from hydrant.commands.eject.parts import Constant, Origin, Parts, Written
from hydrant.training.plan import Plan


class Collector:
    """Collects what the program of a prepared run needs besides its own source. Each module of `cutting` adds to it."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.config = plan, plan.config
        self.parts = Parts({}, {}, {})

    def constant(
        self, name: str, value: Any, comment: str = "", *, group: str, source: str | None = None
    ) -> str:
        """Add a constant, which stands below the heading `group`; return its name.

        Raises:
            ConfigError: a key of the config, of which the name is made, is no name of Python.
        """
        check_name(name)
        text = literal(value) if source is None else source
        self.parts.constants[name] = Constant(text, comment or COMMENTS.get(name, ""), group)
        self.parts.known[name] = value
        return name

    def know(self, **values: Any) -> None:
        """Add values that decide branches."""
        self.parts.known |= values

    def write(self, name: str, section: str, text: str, **imports: Origin) -> None:
        """Add a definition that is written for this config.

        Raises:
            ConfigError: a key of the config, of which the name is made, is no name of Python.
        """
        check_name(name)
        self.parts.written[name] = Written(text, section, imports)

    def express(self, function: str, text: str, **imports: Origin) -> None:
        """Let an expression stand for calls of a function of the module `parts`."""
        self.parts.expressions[function] = Written(text, "", imports)

    def make(self, function: str, node: Mapping[str, Any], group: str, prefix: str) -> None:
        """Let the call of a part stand for calls of a function of the module `parts`. Its arguments are constants."""
        target = pkgutil.resolve_name(node["_target_"])
        text = f"{target.__name__}({self.arguments(node, group, prefix)})"
        self.express(function, text, **{target.__name__: (target.__module__, target.__name__)})

    def load(self, module: str, data: str, test: str, **others: Origin) -> None:
        """Let expressions load the data and the test samples. The functions in them are those of a module."""
        names = set(re.findall(r"(\w+)\(", f"{data} {test}")) - others.keys()
        imports = others | {name: (f"{PROGRAM}.{module}", name) for name in names}
        self.express("load_data", data, **imports)
        self.express("load_test", test, **imports)

    def arguments(self, node: Mapping[str, Any], group: str, prefix: str, *, target: Any = None) -> str:
        """Add a constant for each argument of a part; return the arguments of its call.

        Arguments that are None, True, False or text, and that the target has as its default, are left out.
        """
        target = pkgutil.resolve_name(node["_target_"]) if target is None else target
        defaults = {name: p.default for name, p in inspect.signature(target).parameters.items()}
        words = list[str]()
        for name, value in node.items():
            if name.startswith("_"):
                continue
            is_usual = (
                name in defaults and defaults[name] is not inspect.Parameter.empty and defaults[name] == value
            )
            if is_usual and (value is None or isinstance(value, bool | str)):
                continue
            constant = name.upper()
            if constant in self.parts.constants and self.parts.known[constant] != plain(value):
                constant = f"{prefix}_{constant}"
            if constant not in self.parts.constants:
                self.constant(constant, plain(value), group=group)
            words.append(keyword(name, constant))
        return ", ".join(words)


def literal_call(node: Mapping[str, Any]) -> tuple[str, dict[str, Origin]]:
    """Return the call of a part, whose arguments are literals, and where its name comes from."""
    target = pkgutil.resolve_name(node["_target_"])
    words = [keyword(name, literal(plain(v))) for name, v in node.items() if name[:1] != "_"]
    return f"{target.__name__}({', '.join(words)})", {target.__name__: (target.__module__, target.__name__)}


def plain(value: Any) -> Any:
    """Return a value of a config with tuples instead of lists."""
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


COMMENTS: Mapping[str, str] = {
    "ADAPTIVE": "whether the distance grows with the weight",
    "AMSGRAD": "divide by the largest average of squares so far",
    "AUTOCAST": "number format of the forward pass",
    "BACKOFF_FACTOR": "after an overflow",
    "BETAS": "decay of the averages, of gradients and of their squares",
    "CUTMIX_ALPHA": "parameter of the Beta distribution of the area that is kept",
    "CUTMIX_MINMAX": "limits of the size of a patch; None: from CUTMIX_ALPHA",
    "DAMPENING": "of the gradient that is added to the momentum",
    "DEPTH": "layers",
    "DROPOUT": "probability of a zero",
    "EMA_WARMUP_GAMMA": "updates; larger: the decay rises more slowly",
    "EMA_WARMUP_POWER": "larger: the decay rises faster",
    "EPS": "added to the denominator",
    "GROWTH_FACTOR": "after GROWTH_INTERVAL updates without an overflow",
    "GROWTH_INTERVAL": "updates",
    "HIDDEN": "units of each hidden layer",
    "INIT_SCALE": "by which the loss is multiplied at first, so that small gradients are not rounded to 0",
    "INPUT_SHAPE": "of a sample",
    "LABEL_SMOOTHING": "probability that all classes share",
    "LR": "the learning rate, which the schedule multiplies",
    "LR_DECAY": "of the learning rate by 1 / (1 + LR_DECAY * updates)",
    "MATMUL": "precision of matrix products in float32",
    "MAX_GRAD_NORM": "larger gradients are scaled down to this norm",
    "MAX_GRAD_VALUE": "limit of each number of a gradient",
    "AGC": "limit of the norm of a gradient, as a part of that of its weights",
    "MIN_EMA_DECAY": "lower limit of the decay while it rises",
    "MIXUP_ALPHA": "parameter of the Beta distribution of the weight of a sample",
    "MOMENTUM": "part of the previous step that is added",
    "NESTEROV": "look ahead along the momentum",
    "NS_STEPS": "iterations of Newton-Schulz",
    "NUM_CLASSES": "outputs of the model",
    "NUM_HEADS": "of attention",
    "NUM_LAYERS": "blocks",
    "PROB": "probability that a batch is mixed",
    "R": "exponent of the update in the weights of the average",
    "RHO": "distance in the weights at which the second gradient is computed",
    "SWITCH_PROB": "probability of CutMix instead of mixup",
    "VOCAB_SIZE": "different tokens",
    "WEIGHT_DECAY": "of the weights towards 0",
    "WEIGHT_LR_POWER": "exponent of the learning rate in the weights of the average",
    "WIDTHS": "channels of each stage",
}
"""By the name of a constant. A constant with a comment of its own does not use them."""
