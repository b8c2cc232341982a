"""The parts of a task that each value of compile.scope compiles, each as one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import nn

from hydrant.errors import ConfigError
from hydrant.models.blocks import repeated_blocks

Scope = Literal["task", "model", "model_and_loss", "blocks"]

CompilePart = Callable[..., Any]
"""Compiles a part in place with the arguments of torch.compile."""


def compile_functions(task: nn.Module, scope: Scope) -> list[CompilePart]:
    """Return one function per part to compile.

    Raises:
        ConfigError: the task has no such part.
    """
    match scope:
        case "task":
            return [_in_place(task)]
        case "model":
            return [_in_place(model) for model in _models(task)]
        case "model_and_loss":
            return [*(_in_place(model) for model in _models(task)), _loss(task)]
        case "blocks":
            blocks = [block for model in _models(task) for block in repeated_blocks(model)]
            if not blocks:
                message = "this model has no repeated blocks; use compile.scope=task"
                raise ConfigError("compile.scope", message)
            return [_in_place(block) for block in blocks]


def _in_place(module: nn.Module) -> CompilePart:
    """Return a function that compiles only the forward of a module.

    Its hooks, such as those that gather sharded weights, stay outside the graph. `module.compile` would include them,
    and up to torch 2.13 it compiles nothing of nn.Sequential.
    """
    target: Any = module

    def compile_module(**arguments: Any) -> None:
        forward = target.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        target.forward = torch.compile(call, **arguments)

    return compile_module


def _models(task: nn.Module) -> list[nn.Module]:
    model = cast("nn.Module", task.model)
    return list(model.children()) if isinstance(model, nn.ModuleDict) else [model]


def _loss(task: nn.Module) -> CompilePart:
    assess: Any = getattr(task, "assess", None)
    if assess is None:
        message = f"{type(task).__name__} computes its loss without a method `assess`; use compile.scope=task"
        raise ConfigError("compile.scope", message)

    def compile_loss(**arguments: Any) -> None:
        # Set on the instance, so that other tasks of the class stay as they are.
        task.assess = torch.compile(assess, **arguments)  # type: ignore[assignment]

    return compile_loss
