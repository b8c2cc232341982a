"""The optimizer."""

from __future__ import annotations

import pkgutil

from hydrant.commands.eject.cutting.collector import Collector

_OPTIMIZER = "The optimizer."


def cut_optimizer(collector: Collector) -> None:
    """Add the optimizer and its settings."""
    node = collector.config["optimizer"]
    target = pkgutil.resolve_name(node["_target_"])
    [entry] = collector.plan.optimizers.entries.values()
    kernel = {"fused": True} if entry.optimizer.defaults.get("fused") and node.get("fused") is None else {}
    arguments = collector.arguments({**node, **kernel}, _OPTIMIZER, "OPTIMIZER")
    if kernel:
        del collector.parts.constants["FUSED"]
        arguments = arguments.replace("fused=FUSED", "fused=True")
    name = target.__name__
    origin = target.__module__ if target.__module__.startswith("hydrant.") else "torch.optim"
    text = f"{name}(model.parameters(), {arguments})"
    collector.express("make_optimizer", text, **{name: (origin, name)})
    for key in ("max_grad_norm", "max_grad_value", "agc"):
        collector.constant(key.upper(), collector.config[key], group=_OPTIMIZER)
