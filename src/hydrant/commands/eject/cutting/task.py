"""The model and the loss."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hydrant.commands.eject.bundle import PROGRAM
from hydrant.commands.eject.cutting.collector import Collector, plain
from hydrant.training.evaluation import eval_mode
from hydrant.training.plan import Plan

_LOSS = "The loss."


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
    node, plan = collector.config["task"], collector.plan
    name = str(node["_target_"]).rpartition(".")[2]
    collector.know(SUMS=False)
    collector.express("forward", "model(inputs)")
    per_sample = plan.targets_per_sample == 1
    collector.express("num_targets", "len(targets)" if per_sample else "targets.numel()")
    module, metrics = {"Classification": _cut_classification, "Regression": _cut_regression}[name](
        collector, node
    )
    collector.parts.aliases["loss_and_metrics"] = (f"{PROGRAM}.{module}", "loss_and_metrics")
    comment = "what is measured in training and evaluation"
    collector.constant("METRICS", metrics, comment, group=_LOSS)


def _cut_classification(collector: Collector, node: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    collector.know(CLASS_WEIGHTS=node["class_weights"], SMOOTHS=bool(node["label_smoothing"]))
    collector.constant("LABEL_SMOOTHING", node["label_smoothing"], group=_LOSS)
    return "loss", ("loss", "accuracy")


def _cut_regression(collector: Collector, node: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    outputs, targets = _example(collector.plan)
    collector.know(LOSS=node["loss"], SQUEEZES=outputs.shape == (*targets.shape, 1))
    collector.constant("DELTA", node["delta"], "larger errors count linearly", group=_LOSS)
    if node["metrics"]:
        _sums(collector, "loss_regression", "r2")
    return "loss_regression", ("loss", "mse", "mae")


def _example(plan: Plan) -> tuple[Tensor, Tensor]:
    """Return what the model gives for two samples, and their targets."""
    on_host = dataclasses.replace(plan.spec, device=torch.device("cpu"))
    batch = next(iter(plan.val.batches(on_host, 2)))
    with torch.no_grad(), eval_mode(plan.task):
        return plan.task.model(batch.inputs), batch.targets


def _sums(collector: Collector, module: str, metric: str) -> None:
    """Add metrics of evaluations that are functions of sums over all samples."""
    collector.know(SUMS=True)
    collector.parts.aliases["sums_of"] = (f"{PROGRAM}.{module}", f"{metric}_sums")
    collector.parts.aliases["values_of"] = (f"{PROGRAM}.{module}", metric)
