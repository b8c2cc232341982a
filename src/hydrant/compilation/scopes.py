"""Which parts of a task are compiled, each as one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import torch
from torch import nn

from hydrant.errors import ConfigError

Scope = Literal["task", "model", "model_and_loss", "blocks"]

CompilePart = Callable[..., Any]
"""Compiles a part in place, given the arguments of torch.compile."""


def parts_of(task: nn.Module, scope: Scope) -> list[CompilePart]:
    """The parts that a scope compiles.

    Raises:
        ConfigError: the task has none of them.
    """
    match scope:
        case "task":
            return [_in_place(task)]
        case "model":
            return [_in_place(model) for model in _models(task)]
        case "model_and_loss":
            return [*(_in_place(model) for model in _models(task)), _loss(task)]
        case "blocks":
            blocks = [block for model in _models(task) for block in repeated(model)]
            if not blocks:
                told = "this model has no repeated blocks; use compile.scope=task"
                raise ConfigError("compile.scope", told)
            return [_in_place(block) for block in blocks]


def _in_place(module: nn.Module) -> CompilePart:
    """Its forward alone, so that hooks on it, such as those that gather sharded weights, are outside of the graph.

    Not by `module.compile`, which has them inside, and until torch 2.13 compiles nothing of nn.Sequential.
    """
    own: Any = module

    def compile_module(**arguments: Any) -> None:
        forward = own.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        own.forward = torch.compile(call, **arguments)

    return compile_module


def _models(task: nn.Module) -> list[nn.Module]:
    model = cast("nn.Module", task.model)
    return list(model.children()) if isinstance(model, nn.ModuleDict) else [model]


def _loss(task: nn.Module) -> CompilePart:
    own: Any = getattr(task, "assess", None)
    if own is None:
        told = f"{type(task).__name__} has no loss apart from its model (a method `assess`); use compile.scope=task"
        raise ConfigError("compile.scope", told)

    def compile_loss(**arguments: Any) -> None:
        task.assess = torch.compile(own, **arguments)  # type: ignore[assignment]  # of this task alone

    return compile_loss


def repeated(model: nn.Module) -> Iterator[nn.Module]:
    """The members of every list of alike modules, the outer ones: same class, same shapes, made of others."""
    inner: set[int] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or id(module) in inner:
            continue
        children = [child for child in module if any(True for _ in child.children())]
        kinds = [(type(child), [p.shape for p in child.parameters()]) for child in children]
        for child, kind in zip(children, kinds, strict=True):
            if kinds.count(kind) > 1:
                inner.update(map(id, child.modules()))
                yield child
