"""Classifiers of signals: a convolutional and a recurrent network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hydrant.errors import ConfigError
from hydrant.files.plain_values import PositiveInt


class ConvNet1d(nn.Module):
    """`Conv -> ReLU` per stage with a stride of 2 and a padding of 1, then a linear classifier of all its outputs.

    The defaults of the option are the network of Greydanus & Kobak, "Scaling down deep learning", 2020.

    Args:
        input_shape: (C, L) of one signal.
        num_classes: size of the output; None, of data without classes: 1, for a regression.
        widths: channels of the stages, each of which halves the signal.
        kernel_sizes: points that a convolution of each stage covers.

    Raises:
        ConfigError: the samples are no signals, or an argument is out of its range.
    """

    def __init__(
        self,
        *,
        input_shape: Sequence[int],
        num_classes: int | None,
        widths: Sequence[int],
        kernel_sizes: Sequence[int],
    ) -> None:
        super().__init__()
        channels, length = _channels_and_length("conv1d", input_shape)
        if not widths or min(widths) < 1:
            raise ConfigError("model.widths", f"needs stages with 1 channel or more, not {list(widths)}")
        if len(kernel_sizes) != len(widths) or min(kernel_sizes) < 1:
            message = f"needs a size of 1 or more for each of {len(widths)} stages, not {list(kernel_sizes)}"
            raise ConfigError("model.kernel_sizes", message)
        stages, stride, padding = list[nn.Module](), 2, 1
        for stage, (width, size) in enumerate(zip(widths, kernel_sizes, strict=True), 1):
            if length + 2 * padding < size:
                message = (
                    f"stage {stage} gets {length} points, which {size} do not fit into; give fewer or smaller"
                )
                raise ConfigError("model.kernel_sizes", message)
            stages.append(nn.Sequential(nn.Conv1d(channels, width, size, stride, padding), nn.ReLU()))
            channels, length = width, (length + 2 * padding - size) // stride + 1
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels * length, 1 if num_classes is None else num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, C, L) -> logits (B, num_classes)."""
        return self.classifier(self.stages(inputs).flatten(1))


class GRUClassifier(nn.Module):
    """A gated recurrent unit (Cho et al., 2014) along the signal, then a linear classifier of its state at every point.

    The defaults of the option are the network of Greydanus & Kobak, "Scaling down deep learning", 2020.

    Args:
        input_shape: (C, L) of one signal.
        num_classes: size of the output; None, of data without classes: 1, for a regression.
        width: size of the state, of each direction.
        bidirectional: a second one reads the signal from its end.

    Raises:
        ConfigError: the samples are no signals.
    """

    def __init__(
        self, *, input_shape: Sequence[int], num_classes: int | None, width: PositiveInt, bidirectional: bool
    ) -> None:
        super().__init__()
        channels, length = _channels_and_length("gru", input_shape)
        self.gru = nn.GRU(channels, width, batch_first=True, bidirectional=bidirectional)
        num_states = width * (2 if bidirectional else 1) * length
        self.classifier = nn.Linear(num_states, 1 if num_classes is None else num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, C, L) -> logits (B, num_classes)."""
        states, _ = self.gru(inputs.transpose(1, 2))
        return self.classifier(states.flatten(1))


def _channels_and_length(model: str, input_shape: Sequence[int]) -> tuple[int, int]:
    """Return the channels and the length of signals.

    Raises:
        ConfigError: the samples have another shape.
    """
    if len(input_shape) != 2:
        needed = f"{model} needs signals (C, L), such as those of data=mnist1d"
        raise ConfigError(
            "model", f"{needed}, not data.input_shape={list(input_shape)}", remedy="use model=mlp"
        )
    channels, length = input_shape
    return channels, length
