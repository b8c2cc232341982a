"""The model and the loss."""

from __future__ import annotations

import dataclasses
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from hydrant.batch import Batch
from hydrant.commands.eject.couplings import ATTENTION, DOCUMENTS, INPUTS, PROGRAM, READOUT
from hydrant.commands.eject.cutting.collector import Collector, literal_call, plain
from hydrant.commands.eject.cutting.observed import observe
from hydrant.commands.eject.cutting.run import RUN
from hydrant.commands.eject.known import SOMETHING
from hydrant.commands.eject.layout import literal
from hydrant.commands.eject.own import check_source, is_of_user
from hydrant.commands.eject.parts import Origin
from hydrant.config.instantiate import instantiate_node
from hydrant.data.token_source import TokenSource
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task
from hydrant.tasks.language_modeling import SeparateReadout
from hydrant.training.evaluation import eval_mode
from hydrant.training.metric_values import try_metrics
from hydrant.training.plan import Plan

_MODEL, _LOSS = "The model.", "The loss."
T = TypeVar("T")


def cut_model(collector: Collector) -> None:
    """Add the model and its settings."""
    node = collector.config["model"]
    modules = list(collector.plan.task.model.modules())
    is_known = str(node["_target_"]).startswith("hydrant.") and not node["_target_"].endswith("timm_model")
    convolves = any(isinstance(module, _ConvNd) for module in modules) or not is_known
    collector.know(HAS_BUFFERS=any(True for _ in collector.plan.task.model.buffers()), CONVOLVES=convolves)
    if node["_target_"] == "hydrant.models.timm_model":
        _cut_timm(collector, node)
        return
    if not str(node["_target_"]).startswith("hydrant."):
        check_source("model", node["_target_"])
    name = pkgutil.resolve_name(node["_target_"]).__name__
    collector.make("make_model", node, _MODEL, "MODEL")
    collector.parts.known_in |= observe(partial(instantiate_node, node))
    known = collector.parts.known_in.get(name, {})
    collector.parts.known_in[name] = {**{k: plain(v) for k, v in node.items() if k[0] != "_"}, **known}


def _cut_timm(collector: Collector, node: Mapping[str, Any]) -> None:
    num_classes = 1 if node["num_classes"] is None else node["num_classes"]
    collector.constant("TIMM_MODEL", node["name"], group=_MODEL)
    settings = {"in_chans": node["input_shape"][0], "num_classes": num_classes, **node["kwargs"]}
    if node["pretrained"]:
        settings["pretrained"] = True
    words = ["TIMM_MODEL"]
    for name, value in settings.items():
        words.append(f"{name}={collector.constant(name.upper(), plain(value), group=_MODEL)}")
    text = f"create_model({', '.join(words)})"
    collector.express("make_model", text, create_model=("timm", "create_model"))


def cut_loss(collector: Collector) -> None:
    """Add the loss and the metrics of the task."""
    node, plan = collector.config["task"], collector.plan
    name = str(node["_target_"]).rpartition(".")[2]
    collector.know(SUMS=False)
    collector.express("forward", "model(inputs)")
    per_sample = plan.targets_per_sample == 1
    collector.express("num_targets", "len(targets)" if per_sample else "targets.numel()")
    collector.know(ADDS_BATCHES=False, VARIES=False)
    collector.constant("TARGETS_PER_SAMPLE", plan.targets_per_sample, group=_LOSS)
    collector.know(MEASURES=False, HAS_LOSSES=False)
    is_own = not str(node["_target_"]).startswith("hydrant.")
    module, metrics = (_cut_own if is_own else _TASKS[name])(collector, node)
    module, _, kind = module.partition(":")
    collector.parts.aliases["loss_and_metrics"] = (f"{PROGRAM}.{module}", f"loss_and_metrics{kind}")
    collector.constant("METRICS", metrics, "of each batch", group=RUN)


def _cut_classification(collector: Collector, node: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    weights: Tensor | None = collector.plan.task.class_weights
    numbers = None if weights is None else tuple(weights.tolist())
    collector.constant("CLASS_WEIGHTS", numbers, "of the loss of each class", group=_LOSS)
    collector.know(SMOOTHS=bool(node["label_smoothing"]))
    collector.constant("LABEL_SMOOTHING", node["label_smoothing"], group=_LOSS)
    _cut_metrics(collector, node, "outputs.float()")
    if node["multi_label"]:
        return "loss:_of_labels", ("loss", "accuracy", "exact_match")
    return "loss", ("loss", "accuracy")


def _cut_regression(collector: Collector, node: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    plan = collector.plan
    batch, outputs = _tried(plan, lambda batch: plan.task.model(batch.inputs))
    squeezes = outputs.shape == (*batch.targets.shape, 1)
    collector.know(LOSS=node["loss"], SQUEEZES=squeezes)
    collector.constant("DELTA", node["delta"], "larger errors count linearly", group=_LOSS)
    _cut_metrics(collector, node, "outputs.float().squeeze(-1)" if squeezes else "outputs.float()")
    return "loss:_of_numbers", ("loss", "mse", "mae")


def _cut_own(collector: Collector, node: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    """Add a task of the user's.

    Raises:
        ConfigError: its source cannot be copied, or it has something that the file does not do.
    """
    path, plan, module = node["_target_"], collector.plan, f"{PROGRAM}.loss_own"
    check_source("task", path)
    target = pkgutil.resolve_name(path)
    bases = [base for base in target.__mro__ if base.__module__.startswith("hydrant.") and base is not Task]
    if bases:
        message = f"{path} is a {bases[0].__name__} of Hydrant; only a task that derives from Task can be ejected yet"
        raise ConfigError("task", message)
    own = [name for name, _ in plan.task.named_parameters() if not name.startswith("model.")]
    own += [name for name, _ in plan.task.named_buffers() if not name.startswith(("model.", "metrics."))]
    if own:
        message = f"{path} has a weight or a buffer of its own ({own[0]}), which cannot be ejected yet"
        raise ConfigError("task", message, remedy="put it into the model")
    batch, outcome = _tried(plan, plan.task)
    if outcome.num_targets != len(batch.targets):
        message = f"{path} has another number of targets than samples, which cannot be ejected yet"
        raise ConfigError("task", message)
    arguments = collector.arguments(node, _LOSS, "TASK")
    words = ", ".join(word for word in arguments.split(", ") if not word.startswith("metrics="))
    metrics = ", metrics={}" if "metrics" in node else ""
    name = target.__name__
    text, origin = f"{name}(model{', ' if words else ''}{words}{metrics})", (target.__module__, name)
    collector.express("make_task", text, **{name: origin})
    collector.express("forward", "outcome_of(model, inputs, targets)", outcome_of=(module, "outcome_of"))
    collector.know(HAS_LOSSES=len(outcome.losses) > 1)
    _cut_metrics(collector, node, "outputs.predictions")
    return "loss_own", tuple(outcome.scalars())


def _cut_metrics(collector: Collector, node: Mapping[str, Any], predictions: str) -> None:
    """Add metrics of evaluations that are objects.

    Raises:
        ConfigError: a metric has several values, or is a lambda.
    """
    if not node.get("metrics"):
        return
    batch, outcome = _tried(collector.plan, collector.plan.task)
    for value in try_metrics(collector.plan.task, batch, outcome):
        if value not in node["metrics"]:
            message = "a metric with several values cannot be ejected yet"
            raise ConfigError(f"task.metrics.{value.partition('/')[0]}", message)
    entries, imports = list[str](), dict[str, Origin]()
    for key, metric in node["metrics"].items():
        target = pkgutil.resolve_name(metric["_target_"])
        if is_of_user(target.__module__):
            check_source(f"task.metrics.{key}", metric["_target_"])
        call, origin = literal_call(metric)
        entries.append(f"{literal(key)}: {call}.to(DEVICE)")
        imports |= origin
    collector.know(MEASURES=True)
    collector.express("make_metrics", f"{{{', '.join(entries)}}}", **imports)
    collector.express("predictions", predictions)


def _tried(plan: Plan, call: Callable[[Batch], T]) -> tuple[Batch, T]:
    """Return two samples, and what the task or the model gives for them."""
    on_host = dataclasses.replace(plan.spec, device=torch.device("cpu"))
    batch = next(iter(plan.val.batches(on_host, 2)))
    with torch.no_grad(), eval_mode(plan.task):
        return batch, call(batch)


def _cut_language_modeling(collector: Collector, node: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    plan, data = collector.plan, collector.plan.data
    model: Any = plan.task.model
    vocab_size = getattr(data, "vocab_size", None)
    module = f"{PROGRAM}.loss_language"
    sizes = max(plan.spec.micro_batch_size, *(split.batch_size for split in plan.splits.values()))
    limit = math.inf if node["max_logits_gib"] is None else node["max_logits_gib"] * 2**30 / 4
    separate = isinstance(model, SeparateReadout)
    reduces = separate and sizes * plan.targets_per_sample * model.vocab_size > limit
    varies = not isinstance(plan.train, TokenSource) or plan.train.sampling == "documents"
    collector.know(REDUCES_PARTS=reduces, ADDS_BATCHES=True, VARIES=varies)
    has_bytes = getattr(data, "token_bytes", None) is not None
    collector.know(HAS_VOCABULARY=vocab_size is not None, HAS_BYTES=has_bytes)
    collector.constant("VOCAB_SIZE", model.vocab_size if separate else vocab_size, group=_LOSS)
    collector.constant("MAX_LOGITS", limit, "logits that are computed at once", group=_LOSS)
    comment = "of the mean squared log of the softmax's denominator, which it keeps near 0"
    collector.constant("Z_LOSS", node["z_loss"], comment, group=_LOSS)
    collector.constant("IGNORED", node["ignore_index"], "targets that do not count", group=_LOSS)
    text = "token_losses(model, inputs, targets)"
    collector.express("forward", text, token_losses=(module, "token_losses"))
    collector.express("num_targets", "(targets != IGNORED).sum()" if varies else "targets.numel()")
    collector.know(SUMS=True)
    collector.parts.aliases["sums_of"] = (module, "text_sums")
    collector.parts.aliases["values_of"] = (module, "text_metrics")
    packs = varies and isinstance(plan.train, TokenSource)  # documents
    inputs = {} if packs else torch.zeros(0)
    facts = {INPUTS: inputs, "Mapping": Mapping, **({} if reduces else {READOUT: True})}
    name, known_in = type(model).__name__, collector.parts.known_in
    known_in[name] = {**known_in.get(name, {}), **facts}
    if ATTENTION in known_in:
        known_in[ATTENTION] = {**known_in[ATTENTION], DOCUMENTS: SOMETHING if packs else None}
    return "loss_language", ("loss", "cross_entropy", "z_loss") if node["z_loss"] else ("loss",)


_TASKS: Mapping[str, Callable[[Collector, Mapping[str, Any]], tuple[str, Sequence[str]]]] = {
    "Classification": _cut_classification,
    "LanguageModeling": _cut_language_modeling,
    "Regression": _cut_regression,
}
"""By the task: what adds its settings, and returns the module of the program with its loss, and its metrics."""
