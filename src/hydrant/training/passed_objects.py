"""Objects that the user passes to `hydrant.train` in place of a config group.

The config names them by a target of this module, with the class of the object. The target returns the object that
`passing` provides in this process. Elsewhere, such as in `hydrant evaluate`, there is none, and the target says so.
"""

import contextlib
import hashlib
import re
from collections.abc import Generator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from hydrant.config import DEFAULT_METRIC
from hydrant.config.groups import PASSED_PREFIX, is_passed, not_passed
from hydrant.config.metric_keys import declared_metric
from hydrant.data import Data
from hydrant.errors import ConfigError, traced
from hydrant.optimizers.ema import copied_model
from hydrant.tasks import Task

_passed: ContextVar[Mapping[str, Any]] = ContextVar("passed", default=MappingProxyType({}))  # by config group

_known: Any = WeakTensorKeyDictionary()
"""The tensors of models that a passed class or function has made. What has one of them again is the user's."""


@contextlib.contextmanager
def passing(objects: Mapping[str, Any]) -> Generator[None]:
    """Let the targets of this module return these objects, by config group."""
    token = _passed.set(objects)
    try:
        yield
    finally:
        _passed.reset(token)


def passed_model(*, type: str, structure: str) -> nn.Module:
    """Return the model that the passed class or function makes, or a copy of the passed model, with its weights.

    `structure` is a hash of the names and shapes of its layers: models of one class may differ in them.

    Raises:
        ConfigError: no model was passed.
    """
    del structure
    model = _object("model", type)
    made = model if isinstance(model, nn.Module) else model()
    if made is model:
        return copied_model(made)
    if any(tensor in _known for tensor in (*made.parameters(), *made.buffers())):
        with contextlib.suppress(RuntimeError):  # torch copies no tensor of a graph, such as one in a list
            return copied_model(made)
    return made  # it was just made, so it needs no copy


def passed_data(
    *, type: str, num_samples: int, input_shape: Sequence[int] | None, num_classes: int | None
) -> Data:
    """Return the passed data. The config has their shapes, because other groups refer to them: `${data.num_classes}`.

    `num_samples` is that of the training set.

    Raises:
        ConfigError: no data were passed.
    """
    del num_samples, input_shape, num_classes
    return _object("data", type)


def passed_task(
    model: nn.Module, *, type: str, arguments: str = "", best_metric: str = DEFAULT_METRIC
) -> Task:
    """Return the task that the passed class or function makes of a model.

    `arguments` is a hash of those that a `functools.partial` adds. The config has the task's `best_metric`, because
    `best.metric` may refer to it.

    Raises:
        ConfigError: none was passed, or it makes something else.
    """
    del arguments, best_metric
    task = _call("task", _object("task", type), "with the model alone", "pass functools.partial(...)", model)
    if not isinstance(task, Task):
        raise ConfigError("task", f"{type} returns a {_name(task)}; it must return a hydrant.tasks.Task")
    return task


def check_passed(config: Mapping[str, Any], groups: Sequence[str]) -> None:
    """Check that the objects which a saved config has in these groups are there.

    Raises:
        ConfigError: some are missing; the error names all of them.
    """
    if missing := [group for group in groups if is_missing(config, group)]:
        raise not_passed({group: config[group]["type"] for group in missing})


def is_missing(config: Mapping[str, Any], group: str) -> bool:
    """Whether a saved config has an object in this group that was not passed now."""
    return is_passed(config, group) and not is_given(group)


def is_given(group: str) -> bool:
    """Whether an object was passed for this config group now."""
    return group in _passed.get()


def _object(group: str, class_name: str) -> Any:
    if not is_given(group):
        raise not_passed({group: class_name})
    return _passed.get()[group]


def nodes_of(objects: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the config node of each object, by config group.

    Raises:
        ConfigError: an object has not the type that its group needs.
    """
    return {group: _NODES[group](value) for group, value in objects.items()}


def _model_node(passed: Any) -> dict[str, Any]:
    model = passed
    if callable(passed) and not isinstance(passed, nn.Module):
        model = _call("model", passed, "without arguments", "pass lambda: Net(width=64)")
    if not isinstance(model, nn.Module):
        raise ConfigError("model", needs=f"a torch.nn.Module, or what makes one, not a {_name(model)}")
    _known.update(dict.fromkeys((*model.parameters(), *model.buffers())))
    weights = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    shapes = {name: () if is_lazy(weight) else tuple(weight.shape) for name, weight in weights.items()}
    structure = _hash(repr(model), *(f"{name} {shape}" for name, shape in shapes.items()))
    return {"_target_": f"{PASSED_PREFIX}model", "type": class_path(passed), "structure": structure}


def _data_node(data: Any) -> dict[str, Any]:
    source: Any = data.train if isinstance(data, Data) else data
    if source is data or not hasattr(source, "num_samples"):
        needed = "a hydrant.data.Data, which holds sources with num_samples for training and validation"
        raise ConfigError(
            "data", f"needs {needed}, not a {_name(source)}", remedy="write data=(train_set, val_set)"
        )
    return {
        "_target_": f"{PASSED_PREFIX}data",
        "type": class_path(getattr(getattr(source, "samples", None), "items", source)),  # the data set
        "num_samples": int(source.num_samples),
        "input_shape": None if data.input_shape is None else list(map(int, data.input_shape)),
        "num_classes": None if data.num_classes is None else int(data.num_classes),
    }


def _task_node(task: Any) -> dict[str, Any]:
    if isinstance(task, nn.Module) or not callable(task):
        needed = "a class or a function that takes the model and returns a hydrant.tasks.Task"
        remedy = "for a loss, pass functools.partial(hydrant.tasks.Supervised, loss=..., metrics={})"
        raise ConfigError("task", f"needs {needed}, not a {_name(task)}", remedy=remedy)
    made_by: Any = task.func if isinstance(task, partial) else task
    node: dict[str, Any] = {"_target_": f"{PASSED_PREFIX}task", "_partial_": True, "type": class_path(task)}
    if isinstance(task, partial):
        node["arguments"] = _hash(repr(task.args), repr(sorted(task.keywords.items())))
    return node | declared_metric(made_by)


def _call(group: str, function: Any, how: str, remedy: str, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except TypeError as error:
        is_inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        text = traced(error) if is_inside else str(error)
        message = f"{class_path(function)} is called {how}: {text}"
        raise ConfigError(group, message, remedy="" if is_inside else remedy) from error


_NODES = {"model": _model_node, "data": _data_node, "task": _task_node}


def _hash(*texts: str) -> str:
    """Return a hash of texts, without the addresses of objects in them, which differ in each process."""
    return hashlib.sha256(re.sub(r" at 0x[0-9a-fA-F]+", "", "\n".join(texts)).encode()).hexdigest()[:12]


def class_path(value: Any) -> str:
    """Return the dotted path of a class or function, also inside `functools.partial`, or of an object's class.

    >>> class_path(nn.Linear(1, 1)), class_path(Task)
    ('torch.nn.modules.linear.Linear', 'hydrant.tasks.base.Task')
    """
    value = value.func if isinstance(value, partial) else value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _name(value: Any) -> str:
    return type(value).__name__
