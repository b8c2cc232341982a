"""Networks for signals."""

from typing import Any

import pytest
import torch
from example_projects import use_example
from torch import nn

from examples.papers.signal_models import ConvNet1d, GRUClassifier
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.training.prepare.build import make_model


@pytest.mark.parametrize(("option", "num_parameters"), [("conv1d", 5210), ("gru", 5134)])
def test_the_defaults_are_the_networks_of_the_paper(
    option: str, num_parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_example("papers", monkeypatch)
    model = make_model(check(compose(["data=mnist1d", f"model={option}"])))
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    assert model(torch.randn(3, 1, 40)).shape == (3, 10)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_states_of_all_points_and_directions_are_read(bidirectional: bool) -> None:
    model = GRUClassifier(input_shape=(2, 7), num_classes=3, width=4, bidirectional=bidirectional)
    model.requires_grad_(False)
    inputs = torch.randn(1, 2, 7)
    assert model.classifier.in_features == 7 * 4 * (1 + bidirectional)
    for point in range(7):
        changed = inputs.clone()
        changed[:, :, point] += 1
        states = (model.gru(x.transpose(1, 2))[0] for x in (inputs, changed))
        differs = torch.ne(*states).any(-1)[0].tolist()
        assert differs == [bidirectional or place >= point for place in range(7)]


@pytest.mark.parametrize("length", [3, 7, 40])
def test_the_classifier_fits_any_length(length: int) -> None:
    model = ConvNet1d(input_shape=(2, length), num_classes=None, widths=[3, 4], kernel_sizes=[5, 2])
    assert model(torch.randn(2, 2, length)).shape == (2, 1)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv1d)]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [(2, 3), (3, 4)]


@pytest.mark.parametrize(
    ("kind", "key", "changes"),
    [
        (ConvNet1d, "model", {"input_shape": (1, 8, 8)}),
        (GRUClassifier, "model", {"input_shape": (40,)}),
        (ConvNet1d, "model.widths", {"widths": []}),
        (ConvNet1d, "model.widths", {"widths": [4, 0, 4]}),
        (ConvNet1d, "model.kernel_sizes", {"kernel_sizes": [3]}),
        (ConvNet1d, "model.kernel_sizes", {"kernel_sizes": [5, 0, 3]}),
        (ConvNet1d, "model.kernel_sizes", {"kernel_sizes": [3, 3, 9]}),
        (ConvNet1d, "model.kernel_sizes", {"input_shape": (1, 2)}),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_with_its_key(kind: Any, key: str, changes: dict[str, Any]) -> None:
    own = {
        ConvNet1d: {"widths": [4, 4, 4], "kernel_sizes": [5, 3, 3]},
        GRUClassifier: {"width": 4, "bidirectional": True},
    }
    arguments: dict[str, Any] = {"input_shape": (1, 10), "num_classes": 3, **own[kind], **changes}
    with pytest.raises(ConfigError, match=rf"^{key}: "):
        kind(**arguments)
