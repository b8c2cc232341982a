"""Any timm model by name, and the repeated blocks of a model, such as the layers of a transformer."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from hydrant.checks import unknown_name
from hydrant.errors import ConfigError, first_line
from hydrant.safety.targets import check_loads_nothing

PRELOAD = {"timm_model": ("timm",)}


def timm_model(
    *,
    name: str,
    input_shape: Sequence[int],
    num_classes: int | None,
    pretrained: bool,
    kwargs: Mapping[str, Any],
) -> nn.Module:
    """Return `timm.create_model(name, in_chans=C, num_classes=num_classes, **kwargs)`.

    Args:
        num_classes: size of the output; None, of data without classes: 1, for a regression.
        pretrained: load pretrained weights.
        kwargs: arguments of this model (`img_size`, `drop_path_rate`, `depth` ...).

    Raises:
        ConfigError: the name is unknown, or timm rejects the arguments or cannot load the weights.
    """
    import timm

    check_timm_name(name, "model.name")
    check_loads_nothing("model.kwargs", kwargs)
    num_outputs = 1 if num_classes is None else num_classes
    try:
        return timm.create_model(
            name, pretrained=pretrained, in_chans=input_shape[0], num_classes=num_outputs, **kwargs
        )
    except OSError as error:
        message = f"timm cannot load {name}'s weights: {first_line(error)}"
        raise ConfigError("model.pretrained", message) from error
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        key = "model.kwargs" if kwargs or not pretrained else "model.pretrained"
        raise ConfigError(key, f"timm rejects the arguments of {name}: {first_line(error)}") from error


def check_timm_name(name: str, key: str) -> None:
    """Refuse everything but `<model>` and `<model>.<tag>` of timm's own list: a hub or a folder may hold anything.

    Raises:
        ConfigError: there is no such model.
    """
    import timm

    if name.split(".")[0] not in timm.list_models():
        raise unknown_name(key, "timm model", name, timm.list_models())


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks in the `ModuleList`s and `Sequential`s of a model.

    Blocks repeat if one list has several of the same class with the same parameter shapes. Modules without children,
    such as `nn.Linear`, and blocks inside another repeated block are left out. Each block is listed once.
    """
    blocks: dict[nn.Module, None] = {}
    inner: set[int] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or id(module) in inner:
            continue
        children = [child for child in module if any(True for _ in child.children())]
        kinds = [(type(child), [p.shape for p in child.parameters()]) for child in children]
        for child, kind in zip(children, kinds, strict=True):
            if kinds.count(kind) > 1:
                inner.update(map(id, child.modules()))
                blocks[child] = None
    return list(blocks)
