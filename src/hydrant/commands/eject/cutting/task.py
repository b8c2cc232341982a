"""The model and the loss."""

from __future__ import annotations

import pkgutil

from hydrant.commands.eject.cutting.collector import Collector, plain


def cut_model(collector: Collector) -> None:
    """Add the model and its settings."""
    node = collector.config["model"]
    target = pkgutil.resolve_name(node["_target_"])
    collector.know(HAS_BUFFERS=any(True for _ in collector.plan.task.model.buffers()))
    name = target.__name__
    text = f"{name}({collector.arguments(node, 'The model.', 'MODEL')})"
    collector.express("make_model", text, **{name: (target.__module__, name)})
    collector.parts.known_in[name] = {key: plain(value) for key, value in node.items() if key[0] != "_"}


def cut_loss(collector: Collector) -> None:
    """Add the loss and the metrics of the task."""
    node = collector.config["task"]
    name = str(node["_target_"]).rpartition(".")[2]
    is_classification = name == "Classification"
    collector.know(
        IS_CLASSIFICATION=is_classification,
        CLASS_WEIGHTS=node.get("class_weights"),
        LOSS=node.get("loss"),
        SQUEEZES=False,
        SMOOTHS=bool(node.get("label_smoothing")),
    )
    collector.constant("LABEL_SMOOTHING", node.get("label_smoothing", 0.0), group="The loss.")
    collector.constant("DELTA", node.get("delta"), group="The loss.")
    metrics = ("loss", "accuracy") if is_classification else ("loss", "mse", "mae")
    comment = "what is measured in training and evaluation"
    collector.constant("METRICS", metrics, comment, group="The loss.")
