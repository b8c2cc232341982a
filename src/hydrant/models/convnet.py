"""A small convolutional network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hydrant.checks import check_number
from hydrant.errors import ConfigError


class ConvNet(nn.Module):
    """`Conv 3x3 -> BatchNorm -> ReLU` per stage, max pooling between stages, then mean pooling and a linear classifier.

    Args:
        input_shape: (C, H, W) of one image.
        num_classes: size of the output; None, of data without classes: 1, for a regression.
        widths: channels of the stages; between two stages the image is halved.
        dropout: probability of dropping a pooled feature, 0..1.

    Raises:
        ConfigError: the samples are no images, or an argument is out of its range.
    """

    def __init__(
        self, *, input_shape: Sequence[int], num_classes: int | None, widths: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        if len(input_shape) != 3:
            message = (
                f"convnet needs images (C, H, W), not data.input_shape={list(input_shape)}; use model=mlp"
            )
            raise ConfigError("model", message)
        check_number("model.dropout", dropout, least=0, below=1)
        smallest = min(input_shape[1:])
        max_stages = smallest.bit_length()  # each stage but the first halves the image
        if not 1 <= len(widths) <= max_stages:
            message = f"{len(widths)} stages; an image of {smallest} pixels allows 1 to {max_stages}"
            raise ConfigError("model.widths", message)
        if min(widths) < 1:
            raise ConfigError(
                "model.widths", f"{list(widths)} has a stage without channels", remedy="give 1 or more"
            )
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
