"""Say where a task fails on a few samples: in which layer, and on which shapes and types."""

import contextlib
from collections.abc import Generator
from traceback import walk_tb
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from hydrant.batch import Batch, tensors_of
from hydrant.config.user_errors import place
from hydrant.errors import ConfigError, typed_line
from hydrant.tasks.losses import explain_unknown_class


@contextlib.contextmanager
def explain_failure(task: Any, batch: Batch, kind: str) -> Generator[None]:
    """Raise a ConfigError that names the layer, the shapes and the types, whatever error a task raises in a trial.

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
        with explain_unknown_class():
            yield
    except ConfigError:
        raise
    except Exception as error:  # a user's model may raise anything, and there is no train.log yet
        layer = _failing_layer(error, task.model)
        if layer is None:
            returned = f" and outputs of the model of {_form(outputs[-1])}" if outputs else ""
            at = f"fails outside the model in a trial of {kind}, on targets of {_form(batch.targets)}{returned}"
        else:
            at = f"fails in a trial of {kind}, on inputs of {_form(batch.inputs)}{layer}"
        message = f"{at}: {typed_line(error)} (at {place(error)})"
        remedy = "Correct the model, the task or the data"
        raise ConfigError("task" if layer is None else "model", message, remedy=remedy) from error
    finally:
        hook.remove()


def _failing_layer(error: BaseException, model: nn.Module) -> str | None:
    """Describe the innermost layer in which an error was raised and what it got: "" for the model itself, None if the
    error was raised outside of it."""
    names = {id(module): name for name, module in model.named_modules()}
    layer, arguments = None, ()
    for frame, _ in walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names and module is not layer:
            layer, arguments = module, frame.f_locals.get("args", ())  # as torch's Module.__call__ names them
    if layer is None or not names[id(layer)]:
        return layer and ""
    is_leaf = next(layer.children(), None) is None
    text = " ".join(repr(layer).split()) if is_leaf else type(layer).__name__
    weight = next(layer.parameters(recurse=False), None)
    weights = "" if weight is None else f" with weights of type {weight.dtype}"
    gets = f" gets {_form(arguments[0] if len(arguments) == 1 else arguments)}" if arguments else " fails"
    return f": its layer {names[id(layer)]}, {text}{weights},{gets}"


def _form(tree: Any) -> str:
    """Describe a tensor by its shape and type, and other values by their class and the tensors in them."""
    forms = [f"shape {list(tensor.shape)} and type {tensor.dtype}" for tensor in tensors_of(tree)]
    if isinstance(tree, Tensor):
        return forms[0]
    return f"type {type(tree).__name__}" + (f" with {', '.join(dict.fromkeys(forms))}" if forms else "")
