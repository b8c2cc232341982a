"""The parts of a task that each value of compile.scope compiles, each as one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

from torch import nn

from hydrant.errors import ConfigError
from hydrant.models.blocks import repeated_blocks

Scope = Literal["task", "model", "model_and_loss", "blocks"]

Function = Callable[..., Any]
CompilePart = Callable[[Callable[[Function], Function]], None]
"""Replaces a part in place by what the given function makes of it."""


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

    def compile_module(compiled: Callable[[Function], Function]) -> None:
        forward = target.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        target.forward = compiled(call)

    return compile_module


def _models(task: nn.Module) -> list[nn.Module]:
    model = cast("nn.Module", task.model)
    return list(model.children()) if isinstance(model, nn.ModuleDict) else [model]


def _loss(task: nn.Module) -> CompilePart:
    assess: Any = getattr(task, "assess", None)
    if assess is None:
        message = f"{type(task).__name__} computes its loss without a method `assess`; use compile.scope=task"
        raise ConfigError("compile.scope", message)

    def compile_loss(compiled: Callable[[Function], Function]) -> None:
        # Set on the instance, so that other tasks of the class stay as they are.
        task.assess = compiled(assess)  # type: ignore[assignment]

    return compile_loss
