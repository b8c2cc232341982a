"""Small networks for vectors and images, and models of timm by their names."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from hydrant.errors import unknown_name
from hydrant.files.plain_values import PositiveInt, RatioBelowOne
from hydrant.safety.targets import check_loads_nothing


class MLP(nn.Module):
    """Flatten, then `Linear -> ReLU -> Dropout` for each hidden layer, then a linear classifier.

    Args:
        input_shape: shape of one sample, e.g. (1, 8, 8).
        num_classes: size of the output; None, of data without classes: 1, for a regression.
        hidden: widths of the hidden layers; []: logistic regression.
        dropout: probability of dropping a hidden unit, from 0 to below 1.
    """

    def __init__(
        self,
        *,
        input_shape: Sequence[int],
        num_classes: int | None,
        hidden: Sequence[PositiveInt],
        dropout: RatioBelowOne,
    ) -> None:
        super().__init__()
        widths = [math.prod(input_shape), *hidden]
        layers = [nn.Sequential(nn.Linear(n, m), nn.ReLU(), nn.Dropout(dropout)) for n, m in pairwise(widths)]
        self.hidden = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], 1 if num_classes is None else num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, *input_shape) -> logits (B, num_classes)."""
        return self.classifier(self.hidden(inputs.flatten(1)))


class ConvNet(nn.Module):
    """`Conv 3x3 -> BatchNorm -> ReLU` per stage, max pooling between stages, then mean pooling and a linear classifier.

    Args:
        input_shape: (C, H, W) of one image.
        num_classes: size of the output; None, of data without classes: 1, for a regression.
        widths: channels of the stages; between two stages the image is halved.
        dropout: probability of dropping a pooled feature, from 0 to below 1.
    """

    def __init__(
        self,
        *,
        input_shape: Sequence[int],
        num_classes: int | None,
        widths: Sequence[PositiveInt],
        dropout: RatioBelowOne,
    ) -> None:
        super().__init__()
        channels = [input_shape[0], *widths]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    nn.MaxPool2d(2) if idx else nn.Identity(),
                    nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False),
                    nn.BatchNorm2d(fan_out),
                    nn.ReLU(),
                )
                for idx, (fan_in, fan_out) in enumerate(zip(channels, widths, strict=False))
            )
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(channels[-1], 1 if num_classes is None else num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, C, H, W) -> logits (B, num_classes)."""
        return self.classifier(self.dropout(self.stages(inputs).mean(dim=(2, 3))))

    @staticmethod
    def group_matcher(coarse: bool = False) -> dict[str, str]:
        """Return the parameters of each layer in the form of timm's models, for `param_groups.layer_decay`."""
        del coarse  # a stage is the smallest layer
        return {"blocks": r"^stages\.(\d+)"}


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
        ConfigError: the name is unknown, or an argument names a file.
    """
    import timm

    check_timm_name(name, "model.name")
    check_loads_nothing("model.kwargs", kwargs)
    num_outputs = 1 if num_classes is None else num_classes
    return timm.create_model(
        name, pretrained=pretrained, in_chans=input_shape[0], num_classes=num_outputs, **kwargs
    )


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
