"""Explain why a task fails on a few samples: in which layer, on what shapes, and what to change."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Mapping, Sequence
from traceback import walk_tb
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from hydrant.batch import Batch, map_tensors
from hydrant.config.error_messages import is_in_user_code, place
from hydrant.errors import ConfigError, typed_line
from hydrant.tasks.losses import explain_unknown_class
from hydrant.training.passed_objects import is_given

_TARGETS = ("label", "labels", "target", "targets", "y")
"""Usual names of the target in a dict."""


@contextlib.contextmanager
def explain_failure(task: Any, batch: Batch, kind: str) -> Generator[None]:
    """Raise a ConfigError that names the shapes, whatever error the forward of a task raises in a trial.

    An error in user code keeps its line: only the user knows what that code needs.

    Args:
        task: is tried.
        batch: on which it is tried.
        kind: what is tried, such as `training`.
    """
    outputs: list[Any] = []

    def keep_output(module: nn.Module, _: Any, output: Any) -> None:
        if module is task.model:
            outputs.append(output)

    hook = register_module_forward_hook(keep_output)  # of all modules: a ScriptModule takes no hook
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # torch's losses broadcast other shapes
            with explain_unknown_class():
                yield
    except ConfigError as error:
        if is_given("data") and error.key == "data" and _has_no_target(batch) and not is_in_user_code(error):
            raise _without_target(batch.inputs) from error
        raise
    except Exception as error:  # a user's model may raise anything, and there is no train.log yet
        if not (layers := _layers_of(error, task.model)):
            raise _task_fails(error, batch, kind, outputs) from error
        raise _model_fails(error, batch, kind, layers[-1]) from error
    finally:
        hook.remove()


def _layers_of(error: BaseException, model: nn.Module) -> list[tuple[str, nn.Module, Any]]:
    """Return the layers in whose call an error was raised, the outermost first: name, layer, and its first argument."""
    names = {id(module): name for name, module in model.named_modules()}
    found: list[tuple[str, nn.Module, Any]] = []
    for frame, _ in walk_tb(error.__traceback__):
        variables: dict[str, Any] = frame.f_locals
        module = variables.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            arguments = (value for name, value in variables.items() if name not in ("self", "args", "kwargs"))
            found.append((names[id(module)], module, next(arguments, None)))
    return found


def _model_fails(
    error: BaseException, batch: Batch, kind: str, layer: tuple[str, nn.Module, Any]
) -> ConfigError:
    name, module, argument = layer
    message = f"fails in a trial of {kind}, on inputs of shape {_shapes(batch.inputs)}"
    is_own = is_in_user_code(error)
    if not is_own and argument is batch.inputs and _has_no_target(batch):
        return _without_target(batch.inputs, f", and the model fails on them: {typed_line(error)}")
    is_inner = bool(name) and type(module).__module__.startswith("torch.nn.")
    weight = next(module.parameters(recurse=False), None)
    if is_inner and isinstance(argument, torch.Tensor):
        layer_text = " ".join(repr(module).split())
        message = f"{message}: its layer {name}, {layer_text}, gets a tensor of shape {list(argument.shape)}"
        takes_indices = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if weight is not None and weight.dtype != argument.dtype and not takes_indices:
            message = f"{message} and type {argument.dtype}: {typed_line(error)}"
            remedy = f"Convert the inputs to the type of its weights: inputs.to({weight.dtype})"
            return ConfigError("model", message, remedy=remedy)
    at = f" (at {place(error)})" if is_own or not is_inner else ""
    if is_inner and isinstance(batch.inputs, Mapping) and argument is batch.inputs:
        remedy = "Return a pair (input, target) in __getitem__, or take the dict in the model's forward"
    elif is_own:
        remedy = "Correct that line, or set its sizes for this shape"
    elif not name and isinstance(error, TypeError) and ".forward() " in str(error):
        remedy = "A model gets one argument, the inputs of a batch; for other calls, write a task"
    elif is_given("model"):
        remedy = "Change its sizes, or the data" if is_inner else "Change the model, or the data"
    else:
        remedy = "Choose another model or other data, or set its sizes for this shape"
    return ConfigError("model", f"{message}: {typed_line(error)}{at}", remedy=remedy)


def _has_no_target(batch: Batch) -> bool:
    """Whether the samples are dicts, none of whose keys is named as the target."""
    return isinstance(batch.inputs, Mapping) and batch.targets in ((), [])


def _without_target(fields: Mapping[str, Any], failure: str = "") -> ConfigError:
    target = next((name for name in _TARGETS if name in fields), "<key>")
    if is_given("data"):
        named = f'make sources of the data sets by hydrant.data.dataset_source(train_set, target="{target}")'
    else:
        named = f"write data.target={target}"
    message = (
        f"the samples are dicts with the keys {', '.join(map(str, fields))} and without a target{failure}"
    )
    remedy = (
        f"Return pairs (input, target) in __getitem__, or, if the model takes the rest of the dict, {named}"
    )
    return ConfigError("data", message, remedy=remedy)


def _task_fails(error: BaseException, batch: Batch, kind: str, outputs: Sequence[Any]) -> ConfigError:
    shapes = f"targets of shape {_shapes(batch.targets)}"
    if outputs:
        shapes = f"{shapes} and outputs of the model of {_kind(outputs[-1])}"
    message = (
        f"fails outside the model in a trial of {kind}, on {shapes}: {typed_line(error)} (at {place(error)})"
    )
    if outputs and not isinstance(outputs[-1], torch.Tensor) and not is_in_user_code(error):
        remedy = "Return a tensor alone from the model's forward, or write a task that takes its outputs"
    else:
        loss = "the loss" if is_given("task") else "task.loss"
        remedy = f"Check {loss}, the targets of the data and the outputs of the model"
    return ConfigError("task", message, remedy=remedy)


def _kind(output: Any) -> str:
    return (
        f"shape {list(output.shape)}" if isinstance(output, torch.Tensor) else f"type {type(output).__name__}"
    )


def _shapes(tree: Any) -> Any:
    return map_tensors(lambda tensor: list(tensor.shape), tree)
